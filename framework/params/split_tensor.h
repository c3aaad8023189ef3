#ifndef FRAMEWORK_PARAMS_SPLIT_TENSOR_H_
#define FRAMEWORK_PARAMS_SPLIT_TENSOR_H_

#include "ATen/core/Tensor.h"

namespace tessera {

// The functions of split_float.h on contiguous 1-D tensors of one size in host
// memory: `values` in FP32, `high` in BF16, `low` in INT16. Both run on all
// cores.
void SplitInHalves(const at::Tensor& values, const at::Tensor& high,
                   const at::Tensor& low);
void JoinHalves(const at::Tensor& high, const at::Tensor& low,
                const at::Tensor& values);

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_SPLIT_TENSOR_H_
