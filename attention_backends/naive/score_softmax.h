#ifndef ATTENTION_BACKENDS_NAIVE_SCORE_SOFTMAX_H_
#define ATTENTION_BACKENDS_NAIVE_SCORE_SOFTMAX_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace tessera {

// The softmax of NAIVE, P = softmax(S), in the ways in which attention is
// commonly written, and its gradient, computed from exactly the tensors that
// autograd would hold for each. S, P and their gradients are [B, H, S, T],
// contiguous, in the compute dtype; row statistics are [B, H, S, 1].
//
// `blind_rows`: number of queries before the first one that sees a key. All
// their scores are -infinity; they get P = 0 and dS = 0.

// One autograd node that holds P, which the product with V holds, too.
//
//   P = softmax(S), in S's place
at::Tensor FusedSoftmax(const at::Tensor& s, int64_t blind_rows);
// Replaces dP by 2 dS = 2 P o (dP - rowsum(dO o O)).
void FusedSoftmaxBackward(const at::Tensor& p, const at::Tensor& rowsum,
                          const at::Tensor& d_p);

// LibTorch's softmax, followed by where(sees a key, ., 0): the softmax's
// gradient holds Y, the gradient of the product with V holds P.
//
//   Y = softmax(S), in S's place
//   P = where(sees a key, Y, 0)
struct LibrarySoftmax {
  at::Tensor y, p;
};
// Takes S in `y`; writes both.
void LibrarySoftmaxForward(const LibrarySoftmax& softmax, int64_t blind_rows);
// Replaces dP by dS = Y o (dP - rowsum(dP o Y)). Uses LibTorch's gradient,
// which needs one more [B, H, S, T] as workspace.
void LibrarySoftmaxBackward(const at::Tensor& y, int64_t blind_rows,
                            const at::Tensor& d_p);

// One elementary operation per line. The gradient of the maximum holds S, those
// of the exponential and the quotient hold E, and the gradient of the product
// with V holds P.
//
//   M = rowmax(S)
//   E = exp(S - M)
//   Z = rowsum(E)
//   P = E / Z
struct HandWrittenSoftmax {
  at::Tensor s, e, p;
  at::Tensor max;  // M, compute dtype; 0 in blind rows
  at::Tensor sum;  // Z, FP32 or wider; 1 in blind rows
};
// Takes S in `s`; writes the others.
void HandWrittenSoftmaxForward(HandWrittenSoftmax softmax, int64_t blind_rows);
// The gradients of these lines; replaces dP by dS:
//
//   dZ = -rowsum(dP o E) / Z^2
//   dE = dP / Z + dZ
//   dS = dE o E
//   dM = -rowsum(dS)
//   dS += dM [S = M] / (how many of the row are M)
//
// The last line adds only rounding errors, since P does not depend on M, but
// autograd computes it, too. Needs one more [B, H, S, T] as workspace.
void HandWrittenSoftmaxBackward(const HandWrittenSoftmax& softmax,
                                const at::Tensor& d_p);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_NAIVE_SCORE_SOFTMAX_H_
