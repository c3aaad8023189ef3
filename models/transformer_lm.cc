#include "models/transformer_lm.h"

#include <utility>

#include "framework/ops/cross_entropy.h"
#include "framework/ops/embedding.h"
#include "framework/ops/linear.h"
#include "framework/ops/rms_norm.h"
#include "framework/params/activation_arena.h"

namespace tessera {
namespace {

BlockRecompute RecomputeOf(const RecomputeConfig& config, int64_t layer) {
  if (layer % config.every() != 0) return {};
  switch (config.policy()) {
    case RecomputeConfig::BLOCK:
      return {.whole = true};
    case RecomputeConfig::ATTENTION:
      return {.attention = true};
    case RecomputeConfig::FFN:
      return {.ffn = true};
    default:
      return {};
  }
}

}  // namespace

TransformerLm::TransformerLm(BlockContext context, ParameterStore& parameters,
                             const RecomputeConfig& recompute)
    : parameters_(parameters),
      context_(std::move(context)),
      embedding_(parameters.Get(kTokenEmbedding)),
      final_norm_(parameters.Get(kFinalNorm)),
      head_(
          parameters.Get(context_.shape.tied_head ? kTokenEmbedding : kHead)) {
  const ModelShape& m = context_.shape;
  if (!context_.rope.cos.defined()) {
    context_.rope =
        RopeTable::Create(m.context, m.head_dim(), m.rope_theta, m.rope_layout,
                          parameters.options().device);
  }
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    blocks_.push_back(std::make_unique<TransformerBlock>(
        context_, parameters, layer, RecomputeOf(recompute, layer)));
  }
}

at::Tensor TransformerLm::Hidden(const at::Tensor& ids_bs) const {
  at::Tensor x_bsc =
      Embedding(ids_bs, embedding_, context_.precision[OpClass::kResidual]);
  for (const auto& block : blocks_) x_bsc = block->Forward(x_bsc);
  return x_bsc;
}

at::Tensor TransformerLm::Head(const at::Tensor& x_bsc) const {
  PhaseScope scope(context_.phases, "head");
  return Linear(RmsNorm(x_bsc, final_norm_, context_.shape.norm_eps,
                        context_.precision[OpClass::kActivation]),
                head_);
}

at::Tensor TransformerLm::Logits(const at::Tensor& ids_bs) const {
  return Head(Hidden(ids_bs));
}

at::Tensor TransformerLm::NextTokenLogits(const at::Tensor& ids_bs,
                                          int64_t length) const {
  const at::Tensor last_bc = Hidden(ids_bs).select(1, length - 1);
  return Head(last_bc.contiguous());
}

at::Tensor TransformerLm::LossSum(const at::Tensor& ids_bs,
                                  const at::Tensor& targets_bs) const {
  return CrossEntropySum(Logits(ids_bs), targets_bs);
}

at::Tensor TransformerLm::LossSumInGradients(
    const at::Tensor& ids_bs, const at::Tensor& targets_bs) const {
  ActivationArena arena(parameters_,
                        context_.shape.tied_head ? &embedding_ : nullptr);
  const ActivationArenaScope scope(&arena);
  return LossSum(ids_bs, targets_bs);
}

}  // namespace tessera
