#include "framework/cuda/kernel.cuh"
#include "framework/params/truncated_normal_launch.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// Each thread writes the four values of a counter, one at a time: a parameter
// may start anywhere in the flat buffer.
template <typename T>
__global__ void Fill(TruncatedNormal normal, int64_t numel, T* values) {
  const int64_t counter = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  uint32_t words[4];
  PhiloxWords(normal.seed, normal.stream, counter, words);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = 4 * counter + k;
    if (i >= numel) return;
    const float x = SignedProbability(words[k]);
    const LogTableRow row = LogRowOf(ErfInvLogArgument(x));
    values[i] = device::FromFloat<T>(normal.stddev * TruncatedNormalOf(x, row));
  }
}

}  // namespace

cudaError_t LaunchTruncatedNormal(const TruncatedNormal& normal, FloatType type,
                                  int64_t numel, void* values,
                                  cudaStream_t stream) {
  constexpr int kValuesPerBlock = 4 * kThreads;
  const int64_t blocks = (numel + kValuesPerBlock - 1) / kValuesPerBlock;
  return WithType(type, [&]<typename T>(T) {
    Fill<<<blocks, kThreads, 0, stream>>>(normal, numel,
                                          static_cast<T*>(values));
    return cudaGetLastError();
  });
}

}  // namespace tessera
