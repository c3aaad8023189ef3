#ifndef TESTS_ATTENTION_BACKENDS_ATTENTION_ORACLE_H_
#define TESTS_ATTENTION_BACKENDS_ATTENTION_ORACLE_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"

namespace tessera::testing {

// Shapes as in attention_backend.h; any strides.
struct AttentionInputs {
  at::Tensor q, k, v, d_o;
  double scale = 1;
  MaskSpec mask = MaskSpec::Causal();
  at::Tensor documents;  // AttentionArgs
  at::Tensor sinks;      // AttentionArgs
  double soft_cap = 0;   // AttentionProblem
};

// AttentionArgs::documents of a batch whose sequences are packed with documents
// of 1 to 300 tokens, other ones in each. On the CPU.
at::Tensor PackedDocuments(int64_t batch, int64_t sequence);

// Gradients of sum(O o dO).
struct AttentionResults {
  at::Tensor o, lse, dq, dk, dv;
  at::Tensor d_sinks;  // undefined without sinks
};

// Attention by ATen's eager operations and their autograd, all of it in
// `dtype`, except L in FP32 or wider. In FP64 it is the oracle; in a kernel's
// dtype it is the baseline, whose error the kernel must not exceed by more than
// a factor of two.
AttentionResults EagerAttention(const AttentionInputs& inputs,
                                at::ScalarType dtype);

// EagerAttention() in FP32 with products whose operands are rounded to TF32, as
// tensor cores do.
AttentionResults EagerTf32Attention(const AttentionInputs& inputs);

// FP64 sums of the magnitudes of the terms of each result: a relative rounding
// r changes the result by at most r times this. A rounding of S changes P by
// |S| P:
//   O: P (1 + |S|) |V|, dV: (P (1 + |S|))^T |dO|, L: 1 + |S|,
//   dQ: scale E |K|, dK: scale E^T |Q|, dz: sum of P_z rowsum(|dO| o P |V|),
//   E = P o (|dO| |V|^T + rowsum(|dO| o P |V|)).
// With a soft cap, S is capped; E leaves out the cap's derivatives, which are
// at most 1 and have roundings of that size.
AttentionResults AttentionMagnitudes(const AttentionInputs& inputs);

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ATTENTION_ORACLE_H_
