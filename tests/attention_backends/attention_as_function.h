#ifndef TESTS_ATTENTION_BACKENDS_ATTENTION_AS_FUNCTION_H_
#define TESTS_ATTENTION_BACKENDS_ATTENTION_AS_FUNCTION_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_op.h"

namespace tessera::testing {

// The spec of SelfAttention() for qkv, [B, S, H + 2 G, D], with G = kv_heads.
SelfAttentionSpec SpecFor(const AttentionBackend& backend,
                          const at::Tensor& qkv, int64_t kv_heads, double scale,
                          MaskSpec mask);

// The op as a differentiable function of a tensor
// (tests/framework/ops/ops_as_functions.h).
at::Tensor SelfAttention(const at::Tensor& qkv, const SelfAttentionSpec& spec);

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ATTENTION_AS_FUNCTION_H_
