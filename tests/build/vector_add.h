#ifndef TESTS_BUILD_VECTOR_ADD_H_
#define TESTS_BUILD_VECTOR_ADD_H_

namespace tessera {

// sums[i] = a[i] + b[i] for i < count, all in host memory, computed on the GPU
// by one kernel. Returns a cudaError_t, 0 for success.
int VectorAddOnGpu(const float* a, const float* b, float* sums, int count);

// The CUDA runtime's words for such a code.
const char* CudaErrorText(int code);

}  // namespace tessera

#endif  // TESTS_BUILD_VECTOR_ADD_H_
