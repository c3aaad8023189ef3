#include "framework/dist/progress_kernel.h"

namespace tessera {
namespace {

// Atomic, because communications of two streams may begin at the same time.
__global__ void Count(int64_t* count, int64_t by, int64_t low,
                      volatile int64_t* word) {
  const auto before = static_cast<int64_t>(
      atomicAdd(reinterpret_cast<unsigned long long*>(count),
                static_cast<unsigned long long>(by)));
  *word = before + by + low;
}

__global__ void Store(int64_t value, volatile int64_t* word) { *word = value; }

}  // namespace

cudaError_t LaunchCount(int64_t* count, int64_t by, int64_t low, int64_t* word,
                        cudaStream_t stream) {
  Count<<<1, 1, 0, stream>>>(count, by, low, word);
  return cudaGetLastError();
}

cudaError_t LaunchStore(int64_t value, int64_t* word, cudaStream_t stream) {
  Store<<<1, 1, 0, stream>>>(value, word);
  return cudaGetLastError();
}

}  // namespace tessera
