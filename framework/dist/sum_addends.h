#ifndef FRAMEWORK_DIST_SUM_ADDENDS_H_
#define FRAMEWORK_DIST_SUM_ADDENDS_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"

namespace tessera {

// sum = the sum over the rows of `addends` [ranks, numel], added in FP32 in
// their order and rounded once. Both are FP16 or BF16, on a GPU. Only in
// CUDA builds.
absl::Status SumAddends(const at::Tensor& addends, const at::Tensor& sum);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_SUM_ADDENDS_H_
