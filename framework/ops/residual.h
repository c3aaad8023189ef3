#ifndef FRAMEWORK_OPS_RESIDUAL_H_
#define FRAMEWORK_OPS_RESIDUAL_H_

#include "ATen/core/Tensor.h"

namespace tessera {

// x + delta in x's dtype; delta may have a narrower one (a block's branch
// under autocast-style precision). Same shapes. Saves nothing. Backward hands
// the gradient to x as it is and to delta rounded to delta's dtype.
//
// Consumes delta: in x's dtype its memory becomes the sum's, so no op may have
// saved it.
at::Tensor AddResidual(const at::Tensor& x, at::Tensor delta);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RESIDUAL_H_
