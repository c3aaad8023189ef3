#ifndef MODELS_TRANSFORMER_LM_H_
#define MODELS_TRANSFORMER_LM_H_

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "framework/autograd/recompute_config.pb.h"
#include "models/transformer_block.h"

namespace tessera {

// A decoder-only transformer language model over a ParameterStore made from
// TransformerParameters(). Embedding, blocks, final RMSNorm, output projection
// (docs/design.md, decision 6).
class TransformerLm {
 public:
  // `context.rope` may be undefined: it is made here, on the store's device,
  // for shape.context positions. `parameters` outlives the model.
  TransformerLm(BlockContext context, ParameterStore& parameters,
                const RecomputeConfig& recompute);
  TransformerLm(const TransformerLm&) = delete;
  TransformerLm& operator=(const TransformerLm&) = delete;

  // ids: [B, S], int64, S <= shape.context. Returns [B, S, V] in the policy's
  // logits dtype.
  at::Tensor Logits(const at::Tensor& ids_bs) const;

  // The logits that follow the first `length` tokens of each row: [B, V].
  // 1 <= length <= S; what stands behind them changes nothing.
  at::Tensor NextTokenLogits(const at::Tensor& ids_bs, int64_t length) const;

  // Sum of the next-token losses in nats; targets: [B, S], see CrossEntropySum.
  at::Tensor LossSum(const at::Tensor& ids_bs,
                     const at::Tensor& targets_bs) const;

  // The same with the activations in the store's gradient buffer where they
  // fit (activation_arena.h): the first forward pass since BeginGradients(),
  // and backward follows before anyone reads or writes a gradient.
  at::Tensor LossSumInGradients(const at::Tensor& ids_bs,
                                const at::Tensor& targets_bs) const;

  const ModelShape& shape() const { return context_.shape; }
  at::Device device() const { return context_.rope.cos.device(); }

 private:
  at::Tensor Hidden(const at::Tensor& ids_bs) const;  // [B, S, C], residual
  at::Tensor Head(const at::Tensor& x_bsc) const;

  const ParameterStore& parameters_;
  BlockContext context_;
  Parameter& embedding_;
  Parameter& final_norm_;
  Parameter& head_;  // the embedding when tied
  std::vector<std::unique_ptr<TransformerBlock>> blocks_;
};

}  // namespace tessera

#endif  // MODELS_TRANSFORMER_LM_H_
