#include "bench/measure/attention_case.h"

#include <ATen/Context.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "framework/base/status_macros.h"
#include "framework/data/read/permutation.h"
#include "framework/precision/precision_policy.h"
#include "framework/program/value.h"

namespace tessera {
namespace {

constexpr absl::string_view kWindowPrefix = "window_";
constexpr absl::string_view kDocumentsPrefix = "documents_";

// The 512 of "window_512"; absent unless it is a whole number >= 1.
std::optional<int64_t> TokensAfter(absl::string_view prefix,
                                   absl::string_view name) {
  int64_t tokens = 0;
  if (absl::ConsumePrefix(&name, prefix) && absl::SimpleAtoi(name, &tokens) &&
      tokens > 0) {
    return tokens;
  }
  return std::nullopt;
}

// The pairs of a query and a key that it sees, in one head of all sequences.
double VisiblePairs(const AttentionCase& shape) {
  if (shape.mean_document == 0) {
    return 1.0 * shape.batch * shape.length * shape.length *
           VisibleShare(ProblemOf(shape, CpuDevice()));
  }
  double pairs = 0;
  for (int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    for (const int64_t tokens :
         DocumentLengths(shape.mean_document, shape.length, sequence)) {
      pairs += 0.5 * tokens * (tokens + 1);
    }
  }
  return pairs;
}

}  // namespace

absl::StatusOr<DeviceInfo> OpenBenchDevice(int index) {
  DeviceInfo device = CpuDevice();
  if (at::hasCUDA()) {
    ASSIGN_OR_RETURN(device, OpenCudaDevice(index));
  }
  PrecisionPolicy(PrecisionMode::kFp32).ApplyToLibTorch();
  return device;
}

std::string BenchDeviceName() {
  return at::hasCUDA() ? CudaDeviceName(0) : CpuDevice().name;
}

AttentionProblem ProblemOf(const AttentionCase& shape,
                           const DeviceInfo& device) {
  return {.b = shape.batch,
          .s = shape.length,
          .t = shape.length,
          .h = shape.heads,
          .g = shape.heads,
          .d = shape.head_dim,
          .dtype = shape.dtype,
          .tf32 = shape.tf32,
          .mask = shape.mask,
          .documents = shape.mean_document > 0,
          .needs_grad = true,
          .deterministic = shape.deterministic,
          .cuda = device.is_cuda(),
          .compute_capability = device.compute_capability};
}

absl::Status CheckMeasurable(const AttentionBackend& backend,
                             const AttentionProblem& problem) {
  if (backend.name() == "FLASH_TILED" && problem.s > kMaxTiledLength) {
    return absl::UnimplementedError(
        absl::StrCat("not measured beyond length ", kMaxTiledLength));
  }
  return backend.Supports(problem);
}

std::optional<at::ScalarType> DtypeNamed(absl::string_view name) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    if (DtypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

absl::Status ParsePrecision(absl::string_view name, AttentionCase* shape) {
  shape->tf32 = name == "TF32";
  const auto dtype = DtypeNamed(shape->tf32 ? "FP32" : name);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision is '", name, "'; it must be BF16, FP16, TF32 or FP32"));
  }
  shape->dtype = *dtype;
  return absl::OkStatus();
}

absl::Status ParseMask(absl::string_view name, AttentionCase* shape) {
  shape->mean_document = TokensAfter(kDocumentsPrefix, name).value_or(0);
  if (name == "causal" || shape->mean_document > 0) {
    shape->mask = MaskSpec::Causal();
  } else if (name == "full") {
    shape->mask = MaskSpec::Full();
  } else if (const auto window = TokensAfter(kWindowPrefix, name)) {
    shape->mask = MaskSpec::Window(*window);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "mask is '", name,
        "'; it must be causal, full, window_512 (the 512 latest tokens) or "
        "documents_512 (packed documents of 512 tokens on average)"));
  }
  return absl::OkStatus();
}

std::string MaskName(const AttentionCase& shape) {
  if (shape.mean_document > 0) {
    return absl::StrCat(kDocumentsPrefix, shape.mean_document);
  }
  if (shape.mask.is_window()) {
    return absl::StrCat(kWindowPrefix, shape.mask.before + 1);
  }
  return shape.mask == MaskSpec::Causal() ? "causal" : "full";
}

std::vector<int64_t> DocumentLengths(int64_t mean, int64_t length,
                                     int64_t sequence) {
  const uint64_t longest = 2 * static_cast<uint64_t>(mean) - 1;
  std::vector<int64_t> lengths;
  // The numbers of SplitMix64 from the seed `sequence`.
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  for (uint64_t left = length; left > 0; left -= lengths.back()) {
    const uint64_t number = Mix(sequence + kStep * lengths.size());
    lengths.push_back(std::min(left, 1 + number % longest));
  }
  return lengths;
}

double AttentionTflops(const AttentionCase& shape, AttentionPass pass,
                       double ms) {
  const double forward =
      4.0 * shape.heads * shape.head_dim * VisiblePairs(shape);
  const double flops =
      pass == AttentionPass::kForward ? forward : 2.5 * forward;
  return flops / ms * 1e-9;
}

double CompulsoryBytes(const AttentionCase& shape, AttentionPass pass) {
  const double rows = 1.0 * shape.batch * shape.heads * shape.length;
  const double operand = rows * shape.head_dim * c10::elementSize(shape.dtype);
  const int operands = pass == AttentionPass::kForward ? 4 : 8;
  return operands * operand + rows * sizeof(float);
}

}  // namespace tessera
