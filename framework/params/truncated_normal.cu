#include "framework/cuda/kernel.cuh"
#include "framework/params/split_float.h"
#include "framework/params/truncated_normal_launch.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct WriteAs {
  T* values;

  __device__ void operator()(int64_t i, float x) const {
    values[i] = device::FromFloat<T>(x);
  }
};

struct WriteHalves {
  uint16_t* high;
  int16_t* low;

  __device__ void operator()(int64_t i, float x) const {
    const SplitFloat halves = SplitInHalves(x);
    high[i] = halves.high;
    low[i] = halves.low;
  }
};

// Each thread writes the four values of a counter, one at a time: a parameter
// may start anywhere in the flat buffer.
template <typename Write>
__global__ void FillTruncatedNormal(TruncatedNormal normal, int64_t numel,
                                    Write write) {
  const int64_t counter = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  uint32_t words[4];
  PhiloxWords(normal.seed, normal.stream, counter, words);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = 4 * counter + k;
    if (i >= numel) return;
    const float x = SignedProbability(words[k]);
    const LogTableRow row = LogRowOf(ErfInvLogArgument(x));
    write(i, normal.stddev * TruncatedNormalOf(x, row));
  }
}

template <typename Write>
cudaError_t LaunchFill(const TruncatedNormal& normal, int64_t numel,
                       const Write& write, cudaStream_t stream) {
  constexpr int kValuesPerBlock = 4 * kThreads;
  const int64_t blocks = (numel + kValuesPerBlock - 1) / kValuesPerBlock;
  FillTruncatedNormal<<<blocks, kThreads, 0, stream>>>(normal, numel, write);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchTruncatedNormal(const TruncatedNormal& normal, FloatType type,
                                  int64_t numel, void* values,
                                  cudaStream_t stream) {
  return WithType(type, [&]<typename T>(T) {
    return LaunchFill(normal, numel, WriteAs<T>{static_cast<T*>(values)},
                      stream);
  });
}

cudaError_t LaunchSplitTruncatedNormal(const TruncatedNormal& normal,
                                       int64_t numel, uint16_t* high,
                                       int16_t* low, cudaStream_t stream) {
  return LaunchFill(normal, numel, WriteHalves{high, low}, stream);
}

}  // namespace tessera
