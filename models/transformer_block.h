#ifndef MODELS_TRANSFORMER_BLOCK_H_
#define MODELS_TRANSFORMER_BLOCK_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "attention_backends/attention_op.h"
#include "framework/ops/rope/rope.h"
#include "framework/program/program.h"
#include "models/model_shape.h"

namespace tessera {

// Options that all blocks of a model share.
struct BlockOptions {
  ModelShape shape;
  RopeAngles angles;
  SelfAttentionSpec attention;
  // In generation, the layers' caches (cached_attention.h), and the position of
  // the one token that is computed; absent: the tokens from the first one.
  std::vector<Value> caches;
  std::optional<Value> position;
};

// The mask of a layer over `sequence` tokens.
MaskSpec LayerMask(const ModelShape& shape, int64_t layer, int64_t sequence);

// One block with RMSNorm, RoPE and SwiGLU. Pre-norm (Xiong et al., "On Layer
// Normalization in the Transformer Architecture", 2020):
//   x += W_o Attention(RoPE(W_qkv RMSNorm(x))), with QkNorm() before RoPE if
//        the shape has one
//   x += W_2 SwiGlu(W_13 RMSNorm(x)), or W_2 ReluSquared(W_1 RMSNorm(x))
// With the norms after (OLMo 2; Walsh et al., 2024), both branches read x
// itself, and x += RMSNorm(W_o ...), x += RMSNorm(W_2 ...).
// x and the result are [B, S, C] in the residual's dtype. The ops are in the
// scopes "block_LAYER/attention" and "block_LAYER/ffn".
//
// Parameters have the names of CS336's reference implementation: ln1 [C];
// attn.qkv = q_proj [H D, C], k_proj and v_proj [G D, C]; attn.output_proj [C,
// H D]; ln2 [C]; ffn.w13 = w1, w3 [F, C], or only ffn.w1 [F, C]; ffn.w2 [C, F].
// QK-norm's gains have the names of Hugging Face's models: attn.q_norm and
// attn.k_norm, both [D], or [H D] and [G D].
Value TransformerBlock(ProgramBuilder& b, Value x_bsc, int64_t layer,
                       const BlockOptions& options);

}  // namespace tessera

#endif  // MODELS_TRANSFORMER_BLOCK_H_
