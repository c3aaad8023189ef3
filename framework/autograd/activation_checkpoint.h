#ifndef FRAMEWORK_AUTOGRAD_ACTIVATION_CHECKPOINT_H_
#define FRAMEWORK_AUTOGRAD_ACTIVATION_CHECKPOINT_H_

#include <functional>

#include "ATen/core/Tensor.h"

namespace tessera {

// Runs y = fn(x) without keeping what its backward needs, and runs fn again
// in the backward pass to obtain it (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016).
//   x: the segment's input, the only activation that is kept
//   fn: a pure function of x, of parameters (whose gradients its ops write
//       themselves) and of LibTorch's random state, which is restored for the
//       second run and put back afterwards; it owns no activation
// Gradients equal those of fn(x) bit for bit.
at::Tensor Checkpointed(std::function<at::Tensor(const at::Tensor&)> fn,
                        const at::Tensor& x);

}  // namespace tessera

#endif  // FRAMEWORK_AUTOGRAD_ACTIVATION_CHECKPOINT_H_
