#include "tests/attention_backends/attention_as_function.h"

#include <vector>

#include "tests/framework/ops/ops_as_functions.h"

namespace tessera::testing {

SelfAttentionSpec SpecFor(const AttentionBackend& backend,
                          const at::Tensor& qkv, int64_t kv_heads, double scale,
                          MaskSpec mask) {
  return {.scale = scale,
          .backend = &backend,
          .problem = {.b = qkv.size(0),
                      .s = qkv.size(1),
                      .t = qkv.size(1),
                      .h = qkv.size(2) - 2 * kv_heads,
                      .g = kv_heads,
                      .d = qkv.size(3),
                      .dtype = qkv.scalar_type(),
                      .mask = mask}};
}

at::Tensor SelfAttention(const at::Tensor& qkv, const SelfAttentionSpec& spec) {
  return RunAsFunction(
      {.build = [&spec](
                    ProgramBuilder& b, const std::vector<Value>& in,
                    Weight) { return tessera::SelfAttention(b, in[0], spec); },
       .precision = PolicyFor(qkv.scalar_type(), qkv.scalar_type())},
      {qkv});
}

}  // namespace tessera::testing
