#ifndef FRAMEWORK_OPS_CUDA_OPS_H_
#define FRAMEWORK_OPS_CUDA_OPS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/ops/reference.h"
#include "framework/ops/rope.h"

namespace tessera {

// The functions of reference.h as one or two kernels each, for tensors of which
// HasKernels() is true. Contracts are those of reference.h. What a kernel does
// not take (say rows longer than a block can reduce) runs the reference.
namespace cuda {

// On a GPU and in FP32, FP16 or BF16.
bool HasKernels(const at::Tensor& tensor);

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

}  // namespace cuda
}  // namespace tessera

#endif  // FRAMEWORK_OPS_CUDA_OPS_H_
