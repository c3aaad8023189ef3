#ifndef ATTENTION_BACKENDS_NAIVE_SCORE_SOFTMAX_H_
#define ATTENTION_BACKENDS_NAIVE_SCORE_SOFTMAX_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace tessera {

// The softmax of NAIVE, P = softmax(S), in the ways in which attention is
// commonly written out, and its gradient from exactly what autograd would hold
// of each. S, P and their gradients are [B, H, S, T], contiguous, in the
// compute dtype; row statistics are [B, H, S, 1].
//
// `blind_rows`: queries before the first that sees a key. Their scores are
// -infinity throughout; they get P = 0 and dS = 0.

// As a node of its own that holds P, which the product with V holds as well.
//
//   P = softmax(S), in S's place
at::Tensor FusedSoftmax(const at::Tensor& s, int64_t blind_rows);
// 2 dS = 2 P o (dP - rowsum(dO o O)), in dP's place.
void FusedSoftmaxBackward(const at::Tensor& p, const at::Tensor& rowsum,
                          const at::Tensor& d_p);

// LibTorch's softmax, followed by where(sees a key, ., 0): the softmax's
// gradient holds Y, that of the product with V holds P.
//
//   Y = softmax(S), in S's place
//   P = where(sees a key, Y, 0)
struct LibrarySoftmax {
  at::Tensor y, p;
};
// From S in `y`; writes both.
void LibrarySoftmaxForward(const LibrarySoftmax& softmax, int64_t blind_rows);
// dS = Y o (dP - rowsum(dP o Y)), in dP's place, by LibTorch's own gradient,
// which takes one more [B, H, S, T] while it works.
void LibrarySoftmaxBackward(const at::Tensor& y, int64_t blind_rows,
                            const at::Tensor& d_p);

// One elementary operation a line. The gradient of the maximum holds S, those
// of the exponential and the quotient hold E, that of the product with V
// holds P.
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
// From S in `s`; writes the others.
void HandWrittenSoftmaxForward(HandWrittenSoftmax softmax, int64_t blind_rows);
// The same lines backwards, in dP's place:
//
//   dZ = -rowsum(dP o E) / Z^2
//   dE = dP / Z + dZ
//   dS = dE o E
//   dM = -rowsum(dS)
//   dS += dM [S = M] / (how many of the row are M)
//
// The last line adds 0 but for rounding, since P does not depend on M; autograd
// does not know that. Takes one more [B, H, S, T] while it works.
void HandWrittenSoftmaxBackward(const HandWrittenSoftmax& softmax,
                                const at::Tensor& d_p);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_NAIVE_SCORE_SOFTMAX_H_
