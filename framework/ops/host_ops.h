#ifndef FRAMEWORK_OPS_HOST_OPS_H_
#define FRAMEWORK_OPS_HOST_OPS_H_

#include "ATen/core/Tensor.h"
#include "framework/ops/reference.h"

namespace tessera {

// The ops where no GPU kernel has them: on a CPU in one pass over the rows of
// contiguous FP32 tensors, for all else as reference.h has it.
namespace host {

RmsNormOut RmsNormForward(const at::Tensor& x, const at::Tensor& gain,
                          double eps, at::ScalarType out_dtype);
at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& r, const at::Tensor& gain,
                           const GradTarget& gain_grad);
void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse);
at::Tensor SwiGluForward(const at::Tensor& ab);
void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab);
CrossEntropyOut CrossEntropyForward(const at::Tensor& logits,
                                    const at::Tensor& targets);
void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits);

}  // namespace host
}  // namespace tessera

#endif  // FRAMEWORK_OPS_HOST_OPS_H_
