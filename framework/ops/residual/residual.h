#ifndef FRAMEWORK_OPS_RESIDUAL_RESIDUAL_H_
#define FRAMEWORK_OPS_RESIDUAL_RESIDUAL_H_

#include "framework/program/program.h"

namespace tessera {

// x + delta in x's dtype. Both have the same shape; delta may have a narrower
// dtype (a block's branch under autocast-style precision). Backward reads
// nothing: x gets the gradient unchanged, delta gets it rounded to delta's
// dtype. The sum may overwrite delta.
Value AddResidual(ProgramBuilder& b, Value x, Value delta);

// Whether `op` is this addition.
bool IsAddResidual(const Op& op);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RESIDUAL_RESIDUAL_H_
