#ifndef FRAMEWORK_CUDA_FLOAT_TYPE_H_
#define FRAMEWORK_CUDA_FLOAT_TYPE_H_

namespace tessera {

// What the elements of a tensor are, for kernels and their launch interfaces,
// which see no LibTorch header. Kernels that store one of these compute in
// FP32.
enum class FloatType { kFloat, kHalf, kBFloat16 };

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_FLOAT_TYPE_H_
