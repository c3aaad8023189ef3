#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FLASH_CUDA_BACKEND_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FLASH_CUDA_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// Attention in our own CUDA kernels, by the algorithm of FlashAttention-2 (Dao,
// arXiv:2307.08691): the scores never leave a multiprocessor, and the backward
// pass recomputes them from L. FP32, BF16 and FP16, any lengths, head dims that
// are multiples of 8 up to 256; the scale must be positive. Sums, exponentials
// and statistics are FP32; in BF16 and FP16, P and dS are rounded to Q's dtype
// as operands of the next product. FP32 products are FP32 multiply-adds; with
// AttentionArgs::tf32, tensor cores multiply operands rounded to TF32, up to
// head dim 128 and if the GPU has the shared memory. Only O and L are saved.
//
// The gradient of Q is summed by atomic additions, whose order changes from run
// to run; with AttentionArgs::deterministic the Hopper kernel adds in a fixed
// order, and the other families run a separate kernel for dQ, which recomputes
// the scores.
class FlashCudaBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "FLASH_CUDA"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Assumes tensors whose data and strides are multiples of 16 bytes; others
  // are copied first.
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FLASH_CUDA_BACKEND_H_
