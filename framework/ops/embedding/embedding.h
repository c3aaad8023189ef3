#ifndef FRAMEWORK_OPS_EMBEDDING_EMBEDDING_H_
#define FRAMEWORK_OPS_EMBEDDING_EMBEDDING_H_

#include "framework/program/program.h"

namespace tessera {

// Looks up rows of the table.
//   ids: [B, S], int64 in [0, V); checked by the data layer, not here
//   table: [V, C], read from its master
//   returns x: [B, S, C], dtype of OpClass::kResidual
// Backward sums the rows of each token in FP32, in an order that is the same on
// every run.
Value Embedding(ProgramBuilder& b, Value ids, Weight table);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_EMBEDDING_EMBEDDING_H_
