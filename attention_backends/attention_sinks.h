#ifndef ATTENTION_BACKENDS_ATTENTION_SINKS_H_
#define ATTENTION_BACKENDS_ATTENTION_SINKS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// Attention sinks (Xiao et al., "Efficient streaming language models with
// attention sinks", 2023; one learned logit per head as in OpenAI's gpt-oss): a
// key without a value takes part in each query's softmax, with a score z_h that
// is the head's parameter. So P sums to less than 1:
//
//   P_ij = exp(S_ij) / (exp(z_h) + sum_k exp(S_ik)).
//
// It follows from softmax without sinks. With its O and L,
//
//   L' = log(exp(L) + exp(z)),  O' = exp(L - L') O,
//
// and as P = exp(S - L'), dS = P o (dP - rowsum(dO o O')): the backward pass of
// a backend that reads O and L is right as it is. Beside it,
//
//   dz_h = - sum over the head's rows of exp(z_h - L') rowsum(dO o O').

// Changes O and L in place.
//   sinks: [H], FP32 (FP64)
//   o_bhsd: stored as [B, S, H, D]
//   lse_bhs: contiguous
void ApplySinks(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                const at::Tensor& lse_bhs);

// Writes dz, [H], of the sinks' dtype. Equal inputs give equal bits. `lse_bhs`
// and `o_bhsd` are as ApplySinks() left them; d_o_bhsd has any strides whose
// last is 1.
void SinkGradients(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                   const at::Tensor& lse_bhs, const at::Tensor& d_o_bhsd,
                   const at::Tensor& d_sinks);

// Into how many parts a GPU divides the sum over a head's `tokens` rows. The
// workspace of SinkGradients() holds one number per part and head.
int64_t SinkChunks(int64_t tokens);
int64_t SinkGradientBytes(const AttentionProblem& problem);

namespace cuda {
// On a GPU. Only in CUDA builds (framework/cuda/cuda_build.h).
void ApplySinks(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                const at::Tensor& lse_bhs);
void SinkGradients(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                   const at::Tensor& lse_bhs, const at::Tensor& d_o_bhsd,
                   const at::Tensor& d_sinks);
}  // namespace cuda

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_SINKS_H_
