#ifndef FRAMEWORK_OPS_SOFT_CAP_SOFT_CAP_H_
#define FRAMEWORK_OPS_SOFT_CAP_SOFT_CAP_H_

#include "framework/program/program.h"

namespace tessera {

// y = cap tanh(x / cap) (Gemma Team, "Gemma 2", 2024, section 2): the logits
// that generation samples from. Forward only, because CrossEntropySum() applies
// the cap itself.
//   x: any shape, any float dtype
//   returns y: x's shape, in the dtype of OpClass::kLoss
Value SoftCap(ProgramBuilder& b, Value x, float cap);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_SOFT_CAP_SOFT_CAP_H_
