#ifndef FRAMEWORK_OPS_SAVED_MEMORY_H_
#define FRAMEWORK_OPS_SAVED_MEMORY_H_

#include "ATen/core/Tensor.h"

namespace tessera {

// For the backward of ops whose kernels may write an operand's gradient over
// the operand: memory like `saved`, one of the node's saved tensors (one
// unpacked handle alive). Its own when nobody else can reach it, and then a
// second backward pass through the node fails, as autograd finds the tensor
// changed; else fresh memory.
at::Tensor TakeGradientMemory(const at::Tensor& saved);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_SAVED_MEMORY_H_
