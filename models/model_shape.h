#ifndef MODELS_MODEL_SHAPE_H_
#define MODELS_MODEL_SHAPE_H_

#include <cstdint>
#include <vector>

#include "framework/ops/rope/rope_table.h"

namespace tessera {

// ModelConfig.NormPlacement.
enum class NormPlacement { kBefore, kAfter };

// ModelConfig.QkNorm.
enum class QkNormForm { kNone, kHead, kProjection };

// The sizes of a transformer language model, from ModelConfig.
//
// Dimension names in this folder: B batch, S sequence, C d_model, H query
// heads, G key/value heads, D head dim, F d_ff, V vocabulary.
struct ModelShape {
  int64_t vocab = 0;  // V
  int64_t layers = 0;
  int64_t d_model = 0;       // C
  int64_t heads = 0;         // H
  int64_t kv_heads = 0;      // G
  int64_t own_head_dim = 0;  // D; 0: C / H
  int64_t d_ff = 0;          // F
  int64_t context = 0;       // longest S
  RopeOptions rope;
  double norm_eps = 1e-5;
  NormPlacement norm_placement = NormPlacement::kBefore;
  QkNormForm qk_norm = QkNormForm::kNone;
  bool tied_head = false;
  bool relu_squared = false;      // feed-forward activation; false: SwiGLU
  float logit_soft_cap = 0;       // 0: none
  double attention_soft_cap = 0;  // of scores; 0: none
  bool attention_sinks = false;
  // Layer i sees the latest windows[i % size] tokens; 0: all. Empty: all.
  std::vector<int64_t> windows;

  int64_t head_dim() const {
    return own_head_dim == 0 ? d_model / heads : own_head_dim;
  }
  int64_t qkv_heads() const { return heads + 2 * kv_heads; }
  int64_t window(int64_t layer) const {
    return windows.empty() ? 0 : windows[layer % windows.size()];
  }
};

}  // namespace tessera

#endif  // MODELS_MODEL_SHAPE_H_
