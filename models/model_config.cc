#include "models/model_config.h"

#include "absl/strings/str_cat.h"
#include "attention_backends/head_dim.h"

namespace tessera {
namespace {

// Far above any model. Counting parameters layer by layer stays cheap, and
// their bytes fit into 64 bits.
constexpr int kMaxLayers = 10'000;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocabulary = 1 << 24;

// Checks a required field.
void CheckSize(bool given, int value, absl::string_view field,
               const Violations& violations) {
  violations.Check(
      value >= 1, field,
      given ? absl::StrCat("must be >= 1; is ", value) : "must be given, >= 1");
}

void CheckAtMost(int most, int value, absl::string_view field,
                 const Violations& violations) {
  violations.Check(value <= most, field,
                   absl::StrCat("must be at most ", most, "; is ", value));
}

bool IsHeadDim(int head_dim) {
  return head_dim >= 1 && head_dim % kHeadDimStep == 0 &&
         head_dim <= kMaxHeadDim;
}

// Requires d_model and num_heads >= 1.
void ValidateHeads(const ModelConfig& config, const Violations& violations) {
  const int d_model = config.d_model();
  const int heads = config.num_heads();
  const int head_dim = d_model / heads;
  if (config.has_head_dim()) {
    violations.Check(
        IsHeadDim(config.head_dim()), "head_dim",
        absl::StrCat("must be a multiple of ", kHeadDimStep, ", at most ",
                     kMaxHeadDim, "; is ", config.head_dim()));
    const int64_t width = int64_t{heads} * config.head_dim();
    violations.Check(width <= kMaxWidth, "num_heads",
                     absl::StrCat("times head_dim must be at most ", kMaxWidth,
                                  "; is ", width));
  } else if (d_model % heads != 0) {
    violations.Add("d_model", absl::StrCat("must be a multiple of num_heads, ",
                                           heads, "; is ", d_model));
  } else if (!IsHeadDim(head_dim)) {
    violations.Add(
        "d_model",
        absl::StrCat("gives heads of d_model / num_heads = ", d_model, " / ",
                     heads, " = ", head_dim, "; must be a multiple of ",
                     kHeadDimStep, ", at most ", kMaxHeadDim));
  }
  if (!config.has_num_kv_heads()) return;
  violations.Check(
      config.num_kv_heads() >= 1 && heads % config.num_kv_heads() == 0,
      "num_kv_heads",
      absl::StrCat("must divide num_heads, ", heads, "; is ",
                   config.num_kv_heads()));
}

void ValidateRopeScaling(const ModelConfig::RopeScaling& scaling,
                         const Violations& violations) {
  const double low = scaling.low_freq_factor();
  if (scaling.factor() < 1) {
    violations.Add("factor",
                   absl::StrCat("must be >= 1; is ", scaling.factor()));
  } else {
    violations.CheckPositiveInFp32(scaling.factor(), "factor");
  }
  violations.CheckPositiveInFp32(low, "low_freq_factor");
  violations.CheckPositiveInFp32(scaling.high_freq_factor(),
                                 "high_freq_factor");
  violations.Check(!(scaling.high_freq_factor() <= low), "high_freq_factor",
                   absl::StrCat("must be > low_freq_factor, ", low, "; is ",
                                scaling.high_freq_factor()));
  violations.CheckAtLeast(1, scaling.original_context_length(),
                          "original_context_length");
}

void ValidateSoftCap(bool is_set, double cap, absl::string_view field,
                     const Violations& violations) {
  if (!is_set) return;
  if (cap > 0) {
    violations.CheckPositiveInFp32(cap, field);
  } else {
    violations.Add(field,
                   absl::StrCat("must be > 0, or absent for no cap; is ", cap));
  }
}

RopeOptions RopeOptionsOf(const ModelConfig& config) {
  const ModelConfig::RopeScaling& scaling = config.rope_scaling();
  return {.theta = config.rope_theta(),
          .layout = config.rope_layout() == ModelConfig::HALVED
                        ? RopeLayout::kHalved
                        : RopeLayout::kInterleaved,
          .scaling = {.factor = scaling.factor(),
                      .low_freq_factor = scaling.low_freq_factor(),
                      .high_freq_factor = scaling.high_freq_factor(),
                      .original_context = scaling.original_context_length()}};
}

}  // namespace

void Validate(const ModelConfig& config, Violations violations) {
  violations.CheckAtLeast(2, config.vocab_size(), "vocab_size");
  CheckSize(config.has_num_layers(), config.num_layers(), "num_layers",
            violations);
  CheckAtMost(kMaxVocabulary, config.vocab_size(), "vocab_size", violations);
  CheckAtMost(kMaxLayers, config.num_layers(), "num_layers", violations);
  CheckAtMost(kMaxWidth, config.d_model(), "d_model", violations);
  CheckAtMost(kMaxWidth, config.d_ff(), "d_ff", violations);
  CheckSize(config.has_d_model(), config.d_model(), "d_model", violations);
  CheckSize(config.has_num_heads(), config.num_heads(), "num_heads",
            violations);
  CheckSize(config.has_d_ff(), config.d_ff(), "d_ff", violations);
  CheckSize(config.has_context_length(), config.context_length(),
            "context_length", violations);
  if (config.d_model() >= 1 && config.num_heads() >= 1) {
    ValidateHeads(config, violations);
  }
  violations.CheckPositiveInFp32(config.rope_theta(), "rope_theta");
  violations.Check(config.rope_layout() != ModelConfig::UNSPECIFIED,
                   "rope_layout", "must be INTERLEAVED or HALVED");
  ValidateRopeScaling(config.rope_scaling(), violations.In("rope_scaling"));
  violations.CheckPositiveInFp32(config.norm_eps(), "norm_eps");
  violations.Check(
      config.norm_placement() != ModelConfig::NORM_PLACEMENT_UNSPECIFIED,
      "norm_placement", "must be BEFORE or AFTER");
  violations.Check(config.qk_norm() != ModelConfig::QK_NORM_UNSPECIFIED,
                   "qk_norm", "must be NONE, HEAD or PROJECTION");
  violations.Check(
      config.feed_forward() != ModelConfig::FEED_FORWARD_UNSPECIFIED,
      "feed_forward", "must be SWIGLU or RELU_SQUARED");
  ValidateSoftCap(config.has_logit_soft_cap(), config.logit_soft_cap(),
                  "logit_soft_cap", violations);
  ValidateSoftCap(config.has_attention_soft_cap(), config.attention_soft_cap(),
                  "attention_soft_cap", violations);
  for (int i = 0; i < config.attention_window_size(); ++i) {
    const auto& window = config.attention_window(i);
    violations.Check(!window.has_tokens() || window.tokens() >= 1,
                     absl::StrCat("attention_window[", i, "].tokens"),
                     absl::StrCat("must be >= 1, or absent for all tokens; is ",
                                  window.tokens()));
  }
  for (int i = 0; i < config.frozen_size(); ++i) {
    violations.Check(!config.frozen(i).empty(), absl::StrCat("frozen[", i, "]"),
                     "must be a pattern over parameter names; is empty");
  }
}

ModelShape ModelShapeOf(const ModelConfig& config) {
  ModelShape m;
  m.vocab = config.vocab_size();
  m.layers = config.num_layers();
  m.d_model = config.d_model();
  m.heads = config.num_heads();
  m.kv_heads =
      config.has_num_kv_heads() ? config.num_kv_heads() : config.num_heads();
  m.own_head_dim = config.head_dim();
  m.d_ff = config.d_ff();
  m.context = config.context_length();
  m.rope = RopeOptionsOf(config);
  m.norm_eps = config.norm_eps();
  m.norm_placement = config.norm_placement() == ModelConfig::AFTER
                         ? NormPlacement::kAfter
                         : NormPlacement::kBefore;
  m.qk_norm = config.qk_norm() == ModelConfig::HEAD ? QkNormForm::kHead
              : config.qk_norm() == ModelConfig::PROJECTION
                  ? QkNormForm::kProjection
                  : QkNormForm::kNone;
  m.tied_head = config.tied_head();
  m.relu_squared = config.feed_forward() == ModelConfig::RELU_SQUARED;
  m.attention_soft_cap = config.attention_soft_cap();
  m.attention_sinks = config.attention_sinks();
  m.logit_soft_cap = static_cast<float>(config.logit_soft_cap());
  for (const auto& window : config.attention_window()) {
    m.windows.push_back(window.tokens());
  }
  return m;
}

}  // namespace tessera
