#include "models/model_shape.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/name_pattern.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

ParameterBlockSpec Single(std::string name, std::vector<int64_t> shape,
                          Init init) {
  ParameterBlockSpec block{.name = name};
  block.members.push_back({std::move(name), std::move(shape), init});
  return block;
}

// Weights of the linear layers `parts`, one below the other: [out, in] each.
ParameterBlockSpec Stacked(
    int64_t layer, absl::string_view name, int64_t in,
    std::vector<std::pair<absl::string_view, int64_t>> parts) {
  ParameterBlockSpec block{.name = LayerName(layer, name)};
  for (const auto& [part, out] : parts) {
    block.members.push_back({LayerName(layer, part), {out, in}, Init::kLinear});
  }
  return block;
}

void AppendLayer(const ModelShape& m, int64_t layer,
                 std::vector<ParameterBlockSpec>* blocks) {
  const int64_t c = m.d_model;
  const int64_t kv = m.kv_heads * m.head_dim();
  blocks->push_back(Single(LayerName(layer, "ln1.weight"), {c}, Init::kOnes));
  blocks->push_back(Stacked(layer, "attn.qkv", c,
                            {{"attn.q_proj.weight", c},
                             {"attn.k_proj.weight", kv},
                             {"attn.v_proj.weight", kv}}));
  blocks->push_back(Single(LayerName(layer, "attn.output_proj.weight"), {c, c},
                           Init::kLinear));
  blocks->push_back(Single(LayerName(layer, "ln2.weight"), {c}, Init::kOnes));
  blocks->push_back(
      Stacked(layer, "ffn.w13", c,
              {{"ffn.w1.weight", m.d_ff}, {"ffn.w3.weight", m.d_ff}}));
  blocks->push_back(
      Single(LayerName(layer, "ffn.w2.weight"), {c, m.d_ff}, Init::kLinear));
}

absl::Status Freeze(const std::string& pattern,
                    std::vector<ParameterBlockSpec>* blocks) {
  bool matched = false;
  for (ParameterBlockSpec& block : *blocks) {
    const auto hits = std::count_if(
        block.members.begin(), block.members.end(),
        [&](const ParameterSpec& p) { return NameMatches(pattern, p.name); });
    if (hits == 0) continue;
    matched = true;
    if (hits != static_cast<int64_t>(block.members.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model.frozen pattern '", pattern, "' matches only part of ",
          block.name, ", whose members are one fused matrix (",
          absl::StrJoin(block.members, ", ",
                        [](std::string* out, const ParameterSpec& p) {
                          absl::StrAppend(out, p.name);
                        }),
          "); freeze all of them or none"));
    }
    block.trainable = false;
  }
  if (!matched) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.frozen pattern '", pattern,
                     "' matches no parameter; names look like ",
                     blocks->front().members.front().name, " and ",
                     blocks->back().members.front().name));
  }
  return absl::OkStatus();
}

std::vector<ParameterBlockSpec> AllBlocks(const ModelShape& m) {
  std::vector<ParameterBlockSpec> blocks;
  blocks.push_back(
      Single(std::string(kTokenEmbedding), {m.vocab, m.d_model},
             m.tied_head ? Init::kTiedEmbedding : Init::kEmbedding));
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    AppendLayer(m, layer, &blocks);
  }
  blocks.push_back(Single(std::string(kFinalNorm), {m.d_model}, Init::kOnes));
  if (!m.tied_head) {
    blocks.push_back(
        Single(std::string(kHead), {m.vocab, m.d_model}, Init::kLinear));
  }
  return blocks;
}

}  // namespace

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
  m.frozen.assign(config.frozen().begin(), config.frozen().end());
  return m;
}

std::string LayerName(int64_t layer, absl::string_view part) {
  return absl::StrCat("layers.", layer, ".", part);
}

absl::StatusOr<std::vector<ParameterBlockSpec>> TransformerParameters(
    const ModelShape& shape) {
  std::vector<ParameterBlockSpec> blocks = AllBlocks(shape);
  for (const std::string& pattern : shape.frozen) {
    RETURN_IF_ERROR(Freeze(pattern, &blocks));
  }
  return blocks;
}

int64_t CountParameters(const ParameterBlockSpec& block) {
  int64_t count = 0;
  for (const ParameterSpec& p : block.members) {
    count += std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1},
                             std::multiplies<>());
  }
  return count;
}

int64_t CountParameters(const ModelShape& shape) {
  int64_t count = 0;
  for (const ParameterBlockSpec& block : AllBlocks(shape)) {
    count += CountParameters(block);
  }
  return count;
}

}  // namespace tessera
