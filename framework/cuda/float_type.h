#ifndef FRAMEWORK_CUDA_FLOAT_TYPE_H_
#define FRAMEWORK_CUDA_FLOAT_TYPE_H_

namespace tessera {

// The type of a tensor's elements, for kernels and their launch functions,
// which do not include LibTorch. Kernels store these types and compute in FP32.
enum class FloatType { kFloat, kHalf, kBFloat16 };

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_FLOAT_TYPE_H_
