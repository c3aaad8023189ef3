#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "attention_backends/compiled_fused/row_mask.h"

// What COMPILED_FUSED does between its products, on the tensors' device.

namespace tessera {
namespace fused {

// P = softmax(S + M) over S, both in scores_bhst, contiguous. lse_bhs, of the
// statistics' dtype and contiguous, receives logsumexp(S + M) unless undefined.
absl::Status SoftmaxInPlace(const RowMask& mask, const at::Tensor& scores_bhst,
                            const at::Tensor& lse_bhs);

// dS = P o (dP - rowsum(dO o O)) over dP, both in d_p_bhst. p_bhst and d_p_bhst
// are contiguous, the rows of the other two.
absl::Status SoftmaxBackwardInPlace(const RowMask& mask,
                                    const at::Tensor& p_bhst,
                                    const at::Tensor& d_o_bhsd,
                                    const at::Tensor& o_bhsd,
                                    const at::Tensor& d_p_bhst);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_H_
