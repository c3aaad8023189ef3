#include <ATen/ATen.h>

#include <limits>

#include "attention_backends/decode_attention.h"
#include "attention_backends/decode_attention_kernel.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"

namespace tessera {
namespace cuda {

void DecodeAttention(const SelfAttentionSpec& spec, int splits,
                     const DecodeAttentionTensors& tensors,
                     const at::Tensor& o) {
  const AttentionProblem& p = spec.problem;
  const at::Tensor &qkv = tensors.qkv, &sinks = tensors.sinks;
  at::Tensor partials, sinks_fp32;
  if (splits > 1) {
    partials = at::empty({splits, p.b * p.h, p.d + 2},
                         qkv.options().dtype(at::kFloat));
  }
  if (sinks.defined()) sinks_fp32 = sinks.to(at::kFloat);
  const auto address = [](const at::Tensor& t) {
    return t.defined() ? t.data_ptr<float>() : nullptr;
  };
  const DecodeAttentionParams params = {
      .b = static_cast<int>(p.b),
      .h = static_cast<int>(p.h),
      .g = static_cast<int>(p.g),
      .d = static_cast<int>(p.d),
      .qkv = qkv.const_data_ptr(),
      .cache = tensors.cache.mutable_data_ptr(),
      .position = tensors.position.const_data_ptr<int64_t>(),
      .cos = address(tensors.rope.cos),
      .sin = address(tensors.rope.sin),
      .rope_positions = tensors.rope.token_positions_data(),
      .halved = tensors.rope.layout == RopeLayout::kHalved,
      .sinks = address(sinks_fp32),
      .o = o.mutable_data_ptr(),
      .scale = static_cast<float>(spec.scale),
      .soft_cap = static_cast<float>(p.soft_cap),
      .before = p.mask.before == kAllKeys ? std::numeric_limits<int64_t>::max()
                                          : p.mask.before,
      .splits = splits,
      .partials = address(partials)};
  ThrowIfError(Launch(qkv, "the kernel of attention to cached keys",
                      LaunchDecodeAttention, params, FloatTypeOf(qkv)));
}

}  // namespace cuda
}  // namespace tessera
