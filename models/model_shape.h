#ifndef MODELS_MODEL_SHAPE_H_
#define MODELS_MODEL_SHAPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/ops/rope.h"
#include "framework/params/parameter_store.h"
#include "models/model_config.pb.h"

namespace tessera {

// The sizes of a transformer language model, as ModelConfig gives them.
//
// Shape legend of this folder: B batch, S sequence, C d_model, H query heads,
// G key/value heads, D head dim, F d_ff, V vocabulary.
struct ModelShape {
  int64_t vocab = 0;  // V
  int64_t layers = 0;
  int64_t d_model = 0;   // C
  int64_t heads = 0;     // H
  int64_t kv_heads = 0;  // G
  int64_t d_ff = 0;      // F
  int64_t context = 0;   // longest S
  double rope_theta = 10000;
  RopeLayout rope_layout = RopeLayout::kInterleaved;
  double norm_eps = 1e-5;
  bool tied_head = false;
  std::vector<std::string> frozen;  // patterns over parameter names

  int64_t head_dim() const { return d_model / heads; }
  int64_t qkv_heads() const { return heads + 2 * kv_heads; }

  // `config` has passed Validate().
  static ModelShape FromConfig(const ModelConfig& config);
};

// Names of a block's parts, as ParameterStore knows them: "layers.3.ffn.w13".
std::string LayerName(int64_t layer, absl::string_view part);
inline constexpr absl::string_view kTokenEmbedding = "token_embeddings.weight";
inline constexpr absl::string_view kFinalNorm = "ln_final.weight";
inline constexpr absl::string_view kHead = "lm_head.weight";

// Every parameter in execution order, named as in CS336's reference
// implementation. Per layer: ln1 [C]; attn.qkv = q_proj [H D, C], k_proj and
// v_proj [G D, C]; attn.output_proj [C, H D]; ln2 [C]; ffn.w13 = w1, w3
// [F, C]; ffn.w2 [C, F].
//
// A block is frozen when a pattern of `shape.frozen` matches all its members.
// InvalidArgument when a pattern matches nothing, or part of a fused block.
absl::StatusOr<std::vector<ParameterBlockSpec>> TransformerParameters(
    const ModelShape& shape);

// Parameters of a block, or in all, each counted once also when the head is
// tied.
int64_t CountParameters(const ParameterBlockSpec& block);
int64_t CountParameters(const ModelShape& shape);

}  // namespace tessera

#endif  // MODELS_MODEL_SHAPE_H_
