#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "attention_backends/compiled_fused/row_mask.h"

// The computation between the products of COMPILED_FUSED, on the tensors'
// device.

namespace tessera {
namespace fused {

// Replaces S by P = softmax(S + M) in scores_bhst, which is contiguous. Writes
// logsumexp(S + M) to lse_bhs, contiguous and in the statistics' dtype, unless
// it is undefined.
absl::Status SoftmaxInPlace(const RowMask& mask, const at::Tensor& scores_bhst,
                            const at::Tensor& lse_bhs);

// Replaces dP by dS = P o (dP - rowsum(dO o O)) in d_p_bhst. p_bhst and
// d_p_bhst are contiguous; the rows of d_o_bhsd and o_bhsd are.
absl::Status SoftmaxBackwardInPlace(const RowMask& mask,
                                    const at::Tensor& p_bhst,
                                    const at::Tensor& d_o_bhsd,
                                    const at::Tensor& o_bhsd,
                                    const at::Tensor& d_p_bhst);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_H_
