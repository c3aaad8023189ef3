// Kernels of windows.py. Values are small integers, so sums are exact in BF16.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

__device__ int Value(size_t i, unsigned launch, int round, int rank) {
  return static_cast<int>((i * 7 + launch * 13 + round * 5 + rank * 17) % 61);
}

// Lets what is launched behind it with programmatic serialization start at once
// if `early`; writes after `delay_ns`.
template <typename T>
__global__ void Produce(T* to, size_t size, const unsigned* launch, int round,
                        int rank, int64_t delay_ns, bool early) {
  if (early) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < static_cast<uint64_t>(delay_ns));
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size;
       i += gridDim.x * blockDim.x) {
    to[i] = T(static_cast<float>(Value(i, *launch, round, rank)));
  }
}

// Counts the elements of a sum over two ranks (rank < 0), or of one rank's
// values, that are wrong. `first` is the index of from[0] in what was produced.
template <typename T>
__global__ void Check(const T* from, size_t size, size_t first,
                      const unsigned* launch, int round, int rank,
                      unsigned long long* wrong) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size;
       i += gridDim.x * blockDim.x) {
    const size_t at = first + i;
    const int expected =
        rank < 0 ? Value(at, *launch, round, 0) + Value(at, *launch, round, 1)
                 : Value(at, *launch, round, rank);
    if (static_cast<float>(from[i]) != static_cast<float>(expected)) {
      atomicAdd(wrong, 1ull);
    }
  }
}

__global__ void Count(unsigned* launch) { ++*launch; }
__global__ void Nothing() {}

}  // namespace

extern "C" {

void produce(void* to, size_t size, bool bf16, void* launch, int round,
             int rank, int64_t delay_ns, bool early, cudaStream_t stream) {
  const auto* count = static_cast<unsigned*>(launch);
  if (bf16) {
    Produce<<<64, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(to), size,
                                    count, round, rank, delay_ns, early);
  } else {
    Produce<<<64, 256, 0, stream>>>(static_cast<float*>(to), size, count, round,
                                    rank, delay_ns, early);
  }
}

void check(void* from, size_t size, size_t first, bool bf16, void* launch,
           int round, int rank, void* wrong, cudaStream_t stream) {
  const auto* count = static_cast<unsigned*>(launch);
  auto* errors = static_cast<unsigned long long*>(wrong);
  if (bf16) {
    Check<<<64, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(from), size,
                                  first, count, round, rank, errors);
  } else {
    Check<<<64, 256, 0, stream>>>(static_cast<float*>(from), size, first, count,
                                  round, rank, errors);
  }
}

void count(void* launch, cudaStream_t stream) {
  Count<<<1, 1, 0, stream>>>(static_cast<unsigned*>(launch));
}

void clear(void* memory, size_t bytes, cudaStream_t stream) {
  cudaMemsetAsync(memory, 0, bytes, stream);
}

void nothing(cudaStream_t stream) { Nothing<<<1, 1, 0, stream>>>(); }

}  // extern "C"
