#ifndef FRAMEWORK_OPS_HOST_OPS_H_
#define FRAMEWORK_OPS_HOST_OPS_H_

#include "ATen/core/Tensor.h"
#include "framework/ops/reference.h"

namespace tessera {

// The ops where no GPU kernel has them: on a CPU in one pass over the rows of
// contiguous FP32 tensors, for all else as reference.h has it.
namespace host {

void RmsNormForward(const at::Tensor& x, const at::Tensor& gain, double eps,
                    const at::Tensor& y, const at::Tensor& r);
void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& r, const at::Tensor& gain,
                     const GradTarget& gain_grad, const at::Tensor& dx);
void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse);
void SwiGluForward(const at::Tensor& ab, const at::Tensor& h);
void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab);
void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets,
                         const at::Tensor& loss, const at::Tensor& lse);
void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits);

}  // namespace host
}  // namespace tessera

#endif  // FRAMEWORK_OPS_HOST_OPS_H_
