#include "models/model_shape.h"

#include <functional>
#include <numeric>

namespace tessera {

ModelShape ModelShape::FromConfig(const ModelConfig& config) {
  ModelShape m;
  m.vocab = config.vocab_size();
  m.layers = config.num_layers();
  m.d_model = config.d_model();
  m.heads = config.num_heads();
  m.kv_heads =
      config.has_num_kv_heads() ? config.num_kv_heads() : config.num_heads();
  m.d_ff = config.d_ff();
  m.context = config.context_length();
  m.rope_theta = config.rope_theta();
  m.rope_layout = config.rope_layout() == ModelConfig::HALVED
                      ? RopeLayout::kHalved
                      : RopeLayout::kInterleaved;
  m.norm_eps = config.norm_eps();
  m.tied_head = config.tied_head();
  m.relu_squared = config.feed_forward() == ModelConfig::RELU_SQUARED;
  return m;
}

int64_t CountParameters(const ParameterBlockSpec& block) {
  int64_t count = 0;
  for (const ParameterSpec& p : block.members) {
    count += std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1},
                             std::multiplies<>());
  }
  return count;
}

int64_t CountParameters(absl::Span<const ParameterBlockSpec> blocks) {
  int64_t count = 0;
  for (const ParameterBlockSpec& block : blocks) {
    count += CountParameters(block);
  }
  return count;
}

}  // namespace tessera
