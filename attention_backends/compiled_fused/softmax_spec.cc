#include "attention_backends/compiled_fused/softmax_spec.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace fused {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;

// Elements of a row that a thread of the forward kernel holds, as FP32. It
// needs about 60 registers in all, so a multiprocessor runs 1024 threads, each
// with 64 or 128 bytes in flight from memory.
constexpr int kHeldElements = 32;

// Bytes of a row of P, and of one of dP, that a lane of the backward kernel
// holds.
constexpr int kChunkBytes = 64;
constexpr int kMaxChunkPacks = 8;

int ElementBytes(FloatType type) { return type == FloatType::kFloat ? 4 : 2; }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int PackOf(const SoftmaxSpec& spec) {
  int pack = 16 / ElementBytes(spec.type);
  while (spec.mask.keys % pack != 0) pack /= 2;
  return pack;
}

const char* Name(FloatType type) {
  switch (type) {
    case FloatType::kFloat:
      return "Float";
    case FloatType::kHalf:
      return "Half";
    case FloatType::kBFloat16:
      break;
  }
  return "BFloat16";
}

std::string Define(const char* name, int64_t value) {
  return absl::StrCat("-DTESSERA_", name, "=", value);
}

}  // namespace

std::string ToString(const SoftmaxSpec& spec) {
  return absl::StrCat(Name(spec.type), ", ", spec.mask.queries, " queries x ",
                      spec.mask.keys, " keys, ",
                      spec.mask.causal ? "causal" : "full");
}

SoftmaxGeometry GeometryOf(const SoftmaxSpec& spec) {
  SoftmaxGeometry geometry;
  geometry.pack = PackOf(spec);
  const int64_t packs = spec.mask.keys / geometry.pack;
  const int held_packs = kHeldElements / geometry.pack;
  while (geometry.row_threads < kMaxThreads &&
         packs > int64_t{held_packs} * geometry.row_threads) {
    geometry.row_threads *= 2;
  }
  const int64_t row_packs = CeilDiv(packs, geometry.row_threads);
  geometry.row_packs =
      row_packs <= held_packs ? static_cast<int>(row_packs) : 0;
  // Several rows share a CUDA block only if none of them needs a barrier.
  geometry.block_threads =
      geometry.row_threads == kWarp ? 4 * kWarp : geometry.row_threads;

  const int chunk_packs = std::min(
      kMaxChunkPacks, kChunkBytes / (geometry.pack * ElementBytes(spec.type)));
  geometry.chunk_packs =
      static_cast<int>(std::min<int64_t>(chunk_packs, CeilDiv(packs, kWarp)));
  geometry.chunks = CeilDiv(packs, int64_t{geometry.chunk_packs} * kWarp);
  return geometry;
}

std::vector<std::string> DefinesOf(const SoftmaxSpec& spec) {
  const SoftmaxGeometry geometry = GeometryOf(spec);
  return {Define("IS_FLOAT", spec.type == FloatType::kFloat),
          Define("IS_HALF", spec.type == FloatType::kHalf),
          Define("QUERIES", spec.mask.queries),
          Define("KEYS", spec.mask.keys),
          Define("CAUSAL", spec.mask.causal),
          Define("BAND_ROWS", spec.mask.bands() == 1 ? spec.mask.queries
                                                     : spec.mask.band_rows),
          Define("PACK", geometry.pack),
          Define("ROW_THREADS", geometry.row_threads),
          Define("ROW_PACKS", geometry.row_packs),
          Define("BLOCK_THREADS", geometry.block_threads),
          Define("CHUNK_PACKS", geometry.chunk_packs),
          Define("CHUNKS", geometry.chunks),
          Define("BACKWARD_THREADS", kBackwardThreads)};
}

}  // namespace fused
}  // namespace tessera
