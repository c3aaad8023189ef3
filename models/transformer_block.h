#ifndef MODELS_TRANSFORMER_BLOCK_H_
#define MODELS_TRANSFORMER_BLOCK_H_

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"
#include "framework/base/phase_observer.h"
#include "framework/ops/rope.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "models/model_shape.h"

namespace tessera {

// Which halves of a block are computed again in the backward pass.
struct BlockRecompute {
  bool attention = false;
  bool ffn = false;
  // Both halves as one segment: only the block's input is kept.
  bool whole = false;
};

// What all blocks of a model share. Outlives them.
struct BlockContext {
  ModelShape shape;
  PrecisionPolicy precision;
  RopeTable rope;
  const AttentionBackend* backend = nullptr;
  bool deterministic = false;  // as in AttentionArgs
  PhaseObserver* phases = nullptr;
};

// One pre-norm block (Xiong et al., "On Layer Normalization in the Transformer
// Architecture", 2020, with RMSNorm, RoPE and SwiGLU in place):
//   x += W_o Attention(RoPE(W_qkv RMSNorm(x)))
//   x += W_2 SwiGlu(W_13 RMSNorm(x))
// x: [B, S, C] in the residual's dtype, in and out.
class TransformerBlock {
 public:
  TransformerBlock(const BlockContext& context, ParameterStore& parameters,
                   int64_t layer, BlockRecompute recompute);

  at::Tensor Forward(const at::Tensor& x_bsc) const;

 private:
  at::Tensor AttentionHalf(const at::Tensor& x_bsc) const;
  at::Tensor FeedForwardHalf(const at::Tensor& x_bsc) const;

  const BlockContext& context_;
  const BlockRecompute recompute_;
  const std::string phase_;  // "block_3"
  Parameter& ln1_;
  Parameter& qkv_;
  Parameter& output_proj_;
  Parameter& ln2_;
  Parameter& w13_;
  Parameter& w2_;
};

}  // namespace tessera

#endif  // MODELS_TRANSFORMER_BLOCK_H_
