#ifndef FRAMEWORK_OPS_RESIDUAL_RESIDUAL_H_
#define FRAMEWORK_OPS_RESIDUAL_RESIDUAL_H_

#include "framework/program/program.h"

namespace tessera {

// x + delta in x's dtype; delta may have a narrower one (a block's branch
// under autocast-style precision). Same shapes. Backward reads nothing: the
// gradient goes to x as it is, and to delta rounded to delta's dtype. The sum
// may take delta's memory.
Value AddResidual(ProgramBuilder& b, Value x, Value delta);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RESIDUAL_RESIDUAL_H_
