#include <algorithm>
#include <cstdint>

#include "ATen/Parallel.h"
#include "framework/base/vector_math.h"
#include "framework/params/truncated_normal_fill.h"

namespace tessera {
namespace cpu {
namespace {

// Counters per pass over the loops below, whose arrays fit in the L1 cache.
constexpr int kCounters = 64;
constexpr int kValues = 4 * kCounters;

// Counters per task of a thread.
constexpr int64_t kGrain = 1 << 12;

// Writes the `count` <= kValues values from `counter` on. Reading the table is
// a loop of its own, so that the compiler can vectorise the others.
TESSERA_CPU_CLONES
void FillBlock(TruncatedNormal normal, uint64_t counter, int count,
               float* out) {
  uint32_t words[kValues];
#pragma omp simd
  for (int i = 0; i < kCounters; ++i) {
    uint32_t of_counter[4];
    PhiloxWords(normal.seed, normal.stream, counter + i, of_counter);
    for (int k = 0; k < 4; ++k) words[4 * i + k] = of_counter[k];
  }
  float x[kValues], log_argument[kValues];
#pragma omp simd
  for (int i = 0; i < kValues; ++i) {
    x[i] = SignedProbability(words[i]);
    log_argument[i] = ErfInvLogArgument(x[i]);
  }
  LogTableRow rows[kValues];
  for (int i = 0; i < kValues; ++i) rows[i] = LogRowOf(log_argument[i]);
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    out[i] = normal.stddev * TruncatedNormalOf(x[i], rows[i]);
  }
}

}  // namespace

void FillTruncatedNormal(const TruncatedNormal& normal,
                         const at::Tensor& values) {
  float* const out = values.mutable_data_ptr<float>();
  const int64_t numel = values.numel(), counters = (numel + 3) / 4;
  at::parallel_for(0, counters, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kCounters) {
      const int64_t stop = std::min({4 * (i + kCounters), 4 * end, numel});
      FillBlock(normal, i, static_cast<int>(stop - 4 * i), out + 4 * i);
    }
  });
}

}  // namespace cpu
}  // namespace tessera
