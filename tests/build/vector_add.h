#ifndef TESTS_BUILD_VECTOR_ADD_H_
#define TESTS_BUILD_VECTOR_ADD_H_

namespace tessera {

// Computes sums[i] = a[i] + b[i] for i < count with one kernel on the GPU. All
// arrays are in host memory. Returns a cudaError_t, 0 on success.
int VectorAddOnGpu(const float* a, const float* b, float* sums, int count);

// The CUDA runtime's text for an error code.
const char* CudaErrorText(int code);

}  // namespace tessera

#endif  // TESTS_BUILD_VECTOR_ADD_H_
