#ifndef FRAMEWORK_OPS_LINEAR_H_
#define FRAMEWORK_OPS_LINEAR_H_

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// y = x W^T.
//   x: [..., in], any float dtype that `weight` is kept in
//   weight: [out, in]
//   returns y: [..., out], x's dtype
// Backward: dx = dy W; dW = dy^T x is written (=) or added (+=) into
// weight.grad(), in that buffer's dtype: an FP32 buffer accumulates products
// of lower-precision operands without rounding in between. dx takes x's memory
// where nobody else holds x (saved_memory.h).
at::Tensor Linear(const at::Tensor& x, Parameter& weight);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_H_
