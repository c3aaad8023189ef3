#ifndef FRAMEWORK_OPS_SWIGLU_SWIGLU_H_
#define FRAMEWORK_OPS_SWIGLU_SWIGLU_H_

#include "framework/program/program.h"

namespace tessera {

// h = silu(a) * b, silu(a) = a / (1 + exp(-a)) (Shazeer, "GLU Variants Improve
// Transformer", 2020).
//   ab: [..., 2F], a in the first F columns (W_1 y), b in the rest (W_3 y)
//   returns h: [..., F], ab's dtype; arithmetic in FP32 (FP64 for FP64)
// Backward reads ab; with sigma = 1 / (1 + exp(-a)):
//   da = dh b sigma (1 + a (1 - sigma)), db = dh a sigma,
// which may overwrite ab.
Value SwiGlu(ProgramBuilder& b, Value ab);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_SWIGLU_SWIGLU_H_
