#ifndef FRAMEWORK_OPS_RELU_SQUARED_RELU_SQUARED_H_
#define FRAMEWORK_OPS_RELU_SQUARED_RELU_SQUARED_H_

#include "framework/program/program.h"

namespace tessera {

// h = max(x, 0)^2 (So et al., "Primer: Searching for Efficient Transformers for
// Language Modeling", 2021).
//   x: any shape, any float dtype
//   returns h: x's shape and dtype, rounded once
// Backward reads x: dx = 2 max(x, 0) dh, which may overwrite x.
Value ReluSquared(ProgramBuilder& b, Value x);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RELU_SQUARED_RELU_SQUARED_H_
