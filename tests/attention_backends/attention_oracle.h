#ifndef TESTS_ATTENTION_BACKENDS_ATTENTION_ORACLE_H_
#define TESTS_ATTENTION_BACKENDS_ATTENTION_ORACLE_H_

#include "ATen/core/Tensor.h"

namespace tessera::testing {

// Shapes as in attention_backend.h; any strides.
struct AttentionInputs {
  at::Tensor q, k, v, d_o;
  double scale = 1;
  bool causal = true;
};

// Gradients of sum(O o dO).
struct AttentionResults {
  at::Tensor o, lse, dq, dk, dv;
};

// Attention by ATen's eager operations and their autograd, all of it in
// `dtype`, L in FP32 or wider. In FP64 the oracle; in the dtype of a kernel the
// baseline whose error it must not exceed twice.
AttentionResults EagerAttention(const AttentionInputs& inputs,
                                at::ScalarType dtype);

// FP64 sums of the magnitudes of what each result adds up, by which one
// relative rounding can change it. One of S changes P by |S| of itself:
//   O: P (1 + |S|) |V|, dV: (P (1 + |S|))^T |dO|, L: 1 + |S|,
//   dQ: scale E |K|, dK: scale E^T |Q|,
//   E = P o (|dO| |V|^T + rowsum(|dO| o P |V|)).
AttentionResults AttentionMagnitudes(const AttentionInputs& inputs);

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ATTENTION_ORACLE_H_
