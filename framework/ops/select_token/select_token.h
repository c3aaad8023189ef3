#ifndef FRAMEWORK_OPS_SELECT_TOKEN_SELECT_TOKEN_H_
#define FRAMEWORK_OPS_SELECT_TOKEN_SELECT_TOKEN_H_

#include "framework/program/program.h"

namespace tessera {

// Selects one position from each sequence. Forward only.
//   x: [B, S, C]
//   position: [1], int64, in [0, S)
//   returns [B, 1, C]
Value SelectToken(ProgramBuilder& b, Value x, Value position);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_SELECT_TOKEN_SELECT_TOKEN_H_
