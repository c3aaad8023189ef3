#ifndef FRAMEWORK_OPTIM_NEWTON_SCHULZ_H_
#define FRAMEWORK_OPTIM_NEWTON_SCHULZ_H_

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "framework/optim/muon_slices.h"

namespace tessera {

// The matrices X of muon_math.h after `steps` >= 1 Newton-Schulz steps, from
// the matrices U in workspace.u(), which it overwrites. The result is one of
// the workspace's tensors.
//
// With Z = a I + b A + c A^2, a step is X <- Z X. If the workspace has
// four_grams(), several steps multiply X at once by Q, the product of their Z,
// while A follows without X (Gram Newton-Schulz: Zhang, Amsel, Chen and Dao,
// 2026):
//
//   Q <- Q Z,  A <- Z (A Z)
//
// The products of small matrices take the place of those with the long sides
// of X. Errors of a 16-bit A grow, so A = X X^T is computed anew after each of
// NewtonSchulzRuns(). All products except Q X are symmetric
// (symmetric_product.h).
//
// In FP16 X is scaled by a power of two while it is iterated: an element of a
// large X is near FP16's smallest normal number.
absl::StatusOr<at::Tensor> NewtonSchulz(int steps,
                                        const MuonWorkspace& workspace);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_NEWTON_SCHULZ_H_
