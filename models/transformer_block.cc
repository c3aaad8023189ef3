#include "models/transformer_block.h"

#include <ATen/ATen.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "attention_backends/attention_op.h"
#include "framework/autograd/activation_checkpoint.h"
#include "framework/ops/linear.h"
#include "framework/ops/residual.h"
#include "framework/ops/rms_norm.h"
#include "framework/ops/swiglu.h"

namespace tessera {

TransformerBlock::TransformerBlock(const BlockContext& context,
                                   ParameterStore& parameters, int64_t layer,
                                   BlockRecompute recompute)
    : context_(context),
      recompute_(recompute),
      phase_(absl::StrCat("block_", layer)),
      ln1_(parameters.Get(LayerName(layer, "ln1.weight"))),
      qkv_(parameters.Get(LayerName(layer, "attn.qkv"))),
      output_proj_(parameters.Get(LayerName(layer, "attn.output_proj.weight"))),
      ln2_(parameters.Get(LayerName(layer, "ln2.weight"))),
      w13_(parameters.Get(LayerName(layer, "ffn.w13"))),
      w2_(parameters.Get(LayerName(layer, "ffn.w2.weight"))) {}

at::Tensor TransformerBlock::Forward(const at::Tensor& x_bsc) const {
  PhaseScope scope(context_.phases, phase_);
  auto attention = [this](const at::Tensor& x) { return AttentionHalf(x); };
  auto ffn = [this](const at::Tensor& x) { return FeedForwardHalf(x); };
  if (recompute_.whole) {
    return Checkpointed([=](const at::Tensor& x) { return ffn(attention(x)); },
                        x_bsc);
  }
  const at::Tensor y =
      recompute_.attention ? Checkpointed(attention, x_bsc) : attention(x_bsc);
  return recompute_.ffn ? Checkpointed(ffn, y) : ffn(y);
}

at::Tensor TransformerBlock::AttentionHalf(const at::Tensor& x_bsc) const {
  PhaseScope scope(context_.phases, "attention");
  const ModelShape& m = context_.shape;
  const int64_t b = x_bsc.size(0), s = x_bsc.size(1);
  const at::Tensor y = RmsNorm(x_bsc, ln1_, m.norm_eps,
                               context_.precision[OpClass::kActivation]);
  // An unsafe view: RoPE rotates the projection in place, and autograd would
  // track an ordinary view's base through a copy of the whole gradient.
  at::Tensor qkv =
      at::_unsafe_view(Linear(y, qkv_), {b, s, m.qkv_heads(), m.head_dim()});
  qkv = Rope(std::move(qkv), context_.rope, m.heads + m.kv_heads);
  const SelfAttentionSpec spec{
      .query_heads = m.heads,
      .kv_heads = m.kv_heads,
      .scale = 1 / std::sqrt(static_cast<double>(m.head_dim())),
      .mask = MaskKind::kCausal,
      .deterministic = context_.deterministic,
      .backend = context_.backend,
      .phases = context_.phases};
  const at::Tensor o = SelfAttention(qkv, spec).view({b, s, m.d_model});
  return AddResidual(x_bsc, Linear(o, output_proj_));
}

at::Tensor TransformerBlock::FeedForwardHalf(const at::Tensor& x_bsc) const {
  PhaseScope scope(context_.phases, "ffn");
  const at::Tensor y = RmsNorm(x_bsc, ln2_, context_.shape.norm_eps,
                               context_.precision[OpClass::kActivation]);
  return AddResidual(x_bsc, Linear(SwiGlu(Linear(y, w13_)), w2_));
}

}  // namespace tessera
