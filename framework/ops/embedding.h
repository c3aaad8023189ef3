#ifndef FRAMEWORK_OPS_EMBEDDING_H_
#define FRAMEWORK_OPS_EMBEDDING_H_

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// Rows of the table.
//   ids: [B, S], int64, each in [0, V): checked by the data layer, not here
//   table: [V, C], read from its master
//   returns x: [B, S, C], `out_dtype`
// Backward sums the rows of each token in FP32, in an order that does not
// change between runs, and writes or adds them into table.grad().
at::Tensor Embedding(const at::Tensor& ids, Parameter& table,
                     at::ScalarType out_dtype);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_EMBEDDING_H_
