#include "trainers/hugging_face/architecture.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/model_config.h"

namespace tessera {
namespace {

// Without ".weight" at their ends.
using Names = std::pair<absl::string_view, absl::string_view>;
constexpr Names kTensors[] = {{"token_embeddings", "model.embed_tokens"},
                              {"ln_final", "model.norm"},
                              {"lm_head", "lm_head"}};
// After "layers.N." and "model.layers.N."; ln1 and ln2 are in HfArchitecture.
constexpr Names kLayerTensors[] = {{"attn.q_proj", "self_attn.q_proj"},
                                   {"attn.k_proj", "self_attn.k_proj"},
                                   {"attn.v_proj", "self_attn.v_proj"},
                                   {"attn.output_proj", "self_attn.o_proj"},
                                   {"attn.q_norm", "self_attn.q_norm"},
                                   {"attn.k_norm", "self_attn.k_norm"},
                                   {"ffn.w1", "mlp.gate_proj"},
                                   {"ffn.w3", "mlp.up_proj"},
                                   {"ffn.w2", "mlp.down_proj"}};

absl::string_view Translated(absl::Span<const Names> table,
                             absl::string_view name) {
  const auto* const found = absl::c_find_if(
      table, [&](const Names& names) { return names.first == name; });
  TESSERA_CHECK(found != table.end(), "no such parameter: ", name);
  return found->second;
}

absl::string_view Describe(HfWindows windows) {
  return windows == HfWindows::kNone ? "no windows"
         : windows == HfWindows::kEveryLayer
             ? "the same window in every layer"
             : "windows of one size in some layers";
}

// Whether the architecture can have `windows`, one for each layer.
bool Fits(HfWindows kind, const std::vector<int64_t>& windows) {
  const std::set<int64_t> sizes(windows.begin(), windows.end());
  if (kind == HfWindows::kNone) return sizes == std::set<int64_t>{0};
  if (kind == HfWindows::kEveryLayer) return sizes.size() == 1;
  return sizes.size() - sizes.count(0) <= 1;
}

// What the architecture has instead of the fields of `config`; empty if it
// computes the same.
std::string Difference(const HfArchitecture& a, const ModelConfig& config) {
  std::vector<std::string> different;
  if (config.qk_norm() != a.qk_norm) {
    different.push_back(
        absl::StrCat("model.qk_norm ", ModelConfig::QkNorm_Name(a.qk_norm)));
  }
  if (config.norm_placement() != a.norm_placement) {
    different.push_back(
        absl::StrCat("model.norm_placement ",
                     ModelConfig::NormPlacement_Name(a.norm_placement)));
  }
  if (!Fits(a.windows, WindowsOf(config))) {
    different.push_back(
        absl::StrCat("model.attention_window: ", Describe(a.windows)));
  }
  return absl::StrJoin(different, ", ");
}

absl::Status CheckCommon(const ModelConfig& config) {
  const char* field = config.feed_forward() != ModelConfig::SWIGLU
                          ? "feed_forward"
                      : config.attention_sinks()        ? "attention_sinks"
                      : config.has_attention_soft_cap() ? "attention_soft_cap"
                      : config.has_logit_soft_cap()     ? "logit_soft_cap"
                                                        : nullptr;
  if (field == nullptr) return absl::OkStatus();
  const auto* descriptor = config.GetDescriptor()->FindFieldByName(field);
  std::string value;
  google::protobuf::TextFormat::PrintFieldValueToString(config, descriptor, -1,
                                                        &value);
  return absl::UnimplementedError(absl::StrCat(
      "model.", field, " is ", value,
      "; no architecture that Tessera can write for transformers has it"));
}

}  // namespace

const std::vector<HfArchitecture>& HfArchitectures() {
  using Config = ModelConfig;
  constexpr absl::string_view kInput = "input_layernorm",
                              kAttention = "post_attention_layernorm",
                              kFeedForward = "post_feedforward_layernorm";
  static const auto* const kArchitectures = new std::vector<HfArchitecture>{
      {"LlamaForCausalLM",
       "llama",
       Config::NONE,
       Config::BEFORE,
       HfWindows::kNone,
       kInput,
       kAttention,
       {}},
      {"MistralForCausalLM",
       "mistral",
       Config::NONE,
       Config::BEFORE,
       HfWindows::kEveryLayer,
       kInput,
       kAttention,
       {"num_key_value_heads", "sliding_window"}},
      {"Qwen3ForCausalLM",
       "qwen3",
       Config::HEAD,
       Config::BEFORE,
       HfWindows::kChosenLayers,
       kInput,
       kAttention,
       {"num_key_value_heads", "head_dim"}},
      {"Olmo2ForCausalLM",
       "olmo2",
       Config::PROJECTION,
       Config::AFTER,
       HfWindows::kNone,
       kAttention,
       kFeedForward,
       {}}};
  return *kArchitectures;
}

absl::StatusOr<const HfArchitecture*> HfArchitectureFor(
    const ModelConfig& config) {
  RETURN_IF_ERROR(CheckCommon(config));
  std::vector<std::string> others;
  for (const HfArchitecture& architecture : HfArchitectures()) {
    const std::string difference = Difference(architecture, config);
    if (difference.empty()) return &architecture;
    others.push_back(absl::StrCat(architecture.name, " has ", difference));
  }
  return absl::UnimplementedError(absl::StrCat(
      "no architecture of transformers has model.qk_norm ",
      ModelConfig::QkNorm_Name(config.qk_norm()), ", model.norm_placement ",
      ModelConfig::NormPlacement_Name(config.norm_placement()),
      " and these windows: ", absl::StrJoin(others, "; ")));
}

std::string HfTensorName(const HfArchitecture& architecture,
                         absl::string_view parameter) {
  constexpr absl::string_view kWeight = ".weight";
  absl::string_view name = absl::StripSuffix(parameter, kWeight);
  if (!absl::ConsumePrefix(&name, "layers.")) {
    return absl::StrCat(Translated(kTensors, name), kWeight);
  }
  const absl::string_view layer = name.substr(0, name.find('.'));
  const absl::string_view part = name.substr(layer.size() + 1);
  return absl::StrCat("model.layers.", layer, ".",
                      part == "ln1"   ? architecture.ln1
                      : part == "ln2" ? architecture.ln2
                                      : Translated(kLayerTensors, part),
                      kWeight);
}

std::vector<int64_t> WindowsOf(const ModelConfig& config) {
  const ModelShape shape = ModelShapeOf(config);
  std::vector<int64_t> windows(shape.layers);
  for (int64_t i = 0; i < shape.layers; ++i) windows[i] = shape.window(i);
  return windows;
}

}  // namespace tessera
