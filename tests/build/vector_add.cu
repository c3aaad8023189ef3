#include <cuda_runtime.h>

#include "tests/build/vector_add.h"

namespace tessera {
namespace {

__global__ void VectorAdd(const float* a, const float* b, float* sums,
                          int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sums[i] = a[i] + b[i];
}

}  // namespace

int VectorAddOnGpu(const float* a, const float* b, float* sums, int count) {
  const size_t bytes = count * sizeof(float);
  float* buffer = nullptr;
  cudaError_t code = cudaMalloc(&buffer, 3 * bytes);
  if (code != cudaSuccess) return code;
  cudaMemcpy(buffer, a, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(buffer + count, b, bytes, cudaMemcpyHostToDevice);
  VectorAdd<<<(count + 255) / 256, 256>>>(buffer, buffer + count,
                                          buffer + 2 * count, count);
  code = cudaGetLastError();
  const cudaError_t copied =
      cudaMemcpy(sums, buffer + 2 * count, bytes, cudaMemcpyDeviceToHost);
  cudaFree(buffer);
  return code != cudaSuccess ? code : copied;
}

const char* CudaErrorText(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

}  // namespace tessera
