#include "framework/optim/optimizer_config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

void CheckBeta(double value, absl::string_view field,
               const Violations& violations) {
  violations.Check(value >= 0 && value < 1, field,
                   absl::StrCat("must be in [0, 1); is ", value));
}

void CheckFinalRatio(double value, const Violations& violations) {
  violations.Check(value >= 0 && value <= 1, "final_ratio",
                   absl::StrCat("must be in [0, 1]; is ", value));
}

void CheckDecaySteps(int steps, const Violations& violations) {
  violations.CheckAtLeast(1, steps, "decay_steps");
}

void ValidateGroup(const ParameterGroupConfig& group,
                   const Violations& violations) {
  violations.Check(!group.name().empty(), "name", "must be given");
  violations.Check(group.patterns_size() > 0, "patterns",
                   "must hold at least one pattern; \"*\" matches every "
                   "parameter");
  if (group.has_weight_decay()) {
    violations.CheckNotNegativeInFp32(group.weight_decay(), "weight_decay");
  }
  violations.CheckNotNegativeInFp32(group.lr_multiplier(), "lr_multiplier");
}

void ValidateWsd(const WsdSchedule& wsd, const Violations& violations) {
  if (wsd.has_decay_steps()) {
    CheckDecaySteps(wsd.decay_steps(), violations);
  } else {
    violations.Add("decay_steps",
                   "must be given; the last tenth of the steps "
                   "is a usual choice");
  }
  CheckFinalRatio(wsd.final_ratio(), violations);
  violations.Check(wsd.decay() != WsdSchedule::UNSPECIFIED, "decay",
                   "must be LINEAR or SQRT");
}

// For shapes whose decay_steps is optional.
template <typename Shape>
void ValidateDecay(const Shape& shape, const Violations& violations) {
  if (shape.has_decay_steps()) {
    CheckDecaySteps(shape.decay_steps(), violations);
  }
  CheckFinalRatio(shape.final_ratio(), violations);
}

// MuonOptions has Muon's rate as a multiple of AdamW's, in FP32.
void ValidateMuonRate(const OptimizerConfig& config,
                      const Violations& violations) {
  const double lr = config.muon().lr(), adamw_lr = config.adamw().lr();
  std::vector<Violation> broken;
  const Violations found(&broken);
  found.CheckPositiveInFp32(lr, "");
  found.CheckPositiveInFp32(adamw_lr, "");
  if (!broken.empty()) return;  // reported by their own messages, or absent
  found.CheckPositiveInFp32(lr / adamw_lr, "");
  if (broken.empty()) return;
  violations.Add("muon.lr",
                 absl::StrCat("is ", lr, ", whose ratio to adamw.lr, ",
                              adamw_lr, ", ", broken[0].message));
}

}  // namespace

void Validate(const OptimizerConfig& config, Violations violations) {
  if (config.has_adamw()) {
    Validate(config.adamw(), violations.In("adamw"));
  } else {
    violations.Add("algorithm",
                   "must be given: adamw { lr: ... }, which muon { } adds to "
                   "for matrices");
  }
  Validate(config.schedule(), violations.In("schedule"));
  Validate(config.muon(), violations.In("muon"));
  ValidateMuonRate(config, violations);
  CheckBeta(config.ema().decay(), "decay", violations.In("ema"));
  if (!config.has_clip_norm()) return;
  if (config.clip_norm() > 0) {
    violations.CheckPositiveInFp32(config.clip_norm(), "clip_norm");
  } else {
    violations.Add("clip_norm",
                   absl::StrCat("must be > 0, or absent for no clipping; is ",
                                config.clip_norm()));
  }
}

void Validate(const AdamWConfig& config, Violations violations) {
  if (config.has_lr()) {
    violations.CheckPositiveInFp32(config.lr(), "lr");
  } else {
    violations.Add("lr", "must be given");
  }
  CheckBeta(config.beta1(), "beta1", violations);
  CheckBeta(config.beta2(), "beta2", violations);
  violations.CheckPositiveInFp32(config.eps(), "eps");
  violations.CheckNotNegativeInFp32(config.weight_decay(), "weight_decay");
  violations.Check(config.groups_size() <= kMaxAdamWGroups, "groups",
                   absl::StrCat("must have at most ", kMaxAdamWGroups,
                                " entries; has ", config.groups_size()));
  std::set<std::string> names;
  for (int i = 0; i < config.groups_size(); ++i) {
    const Violations group = violations.In(absl::StrCat("groups[", i, "]"));
    ValidateGroup(config.groups(i), group);
    group.Check(names.insert(config.groups(i).name()).second, "name",
                absl::StrCat("\"", config.groups(i).name(),
                             "\" is also the name of another group"));
  }
}

void Validate(const MuonConfig& config, Violations violations) {
  if (config.has_lr()) violations.CheckPositiveInFp32(config.lr(), "lr");
  CheckBeta(config.momentum(), "momentum", violations);
  violations.Check(config.ns_steps() >= 1 && config.ns_steps() <= 20,
                   "ns_steps",
                   absl::StrCat("must be in [1, 20]; is ", config.ns_steps()));
  violations.Check(config.adjust_lr() != MuonConfig::UNSPECIFIED, "adjust_lr",
                   "must be ORIGINAL or MATCH_RMS_ADAMW");
  CheckBeta(config.normuon_beta2(), "normuon_beta2", violations);
}

void Validate(const ScheduleConfig& config, Violations violations) {
  violations.CheckAtLeast(0, config.warmup_steps(), "warmup_steps");
  violations.Check(
      config.warmup_ratio() >= 0 && config.warmup_ratio() < 1, "warmup_ratio",
      absl::StrCat("must be in [0, 1), a fraction of training.steps; is ",
                   config.warmup_ratio(),
                   "; for a number of steps set warmup_steps"));
  if (config.has_cosine()) {
    ValidateDecay(config.cosine(), violations.In("cosine"));
  } else if (config.has_linear()) {
    ValidateDecay(config.linear(), violations.In("linear"));
  } else if (config.has_wsd()) {
    ValidateWsd(config.wsd(), violations.In("wsd"));
  }
}

int64_t WarmupSteps(const ScheduleConfig& config, int64_t total_steps) {
  if (!config.has_warmup_ratio()) return config.warmup_steps();
  const double steps = config.warmup_ratio() * static_cast<double>(total_steps);
  return std::min<int64_t>(std::llround(steps), total_steps - 1);
}

LearningRateSchedule LearningRateScheduleOf(const ScheduleConfig& config,
                                            double peak_lr,
                                            int64_t total_steps) {
  using Decay = LearningRateSchedule::Decay;
  LearningRateSchedule schedule;
  schedule.peak_lr = peak_lr;
  const int64_t warmup_steps = WarmupSteps(config, total_steps);
  schedule.warmup_steps = warmup_steps;
  const int64_t after_warmup = total_steps - warmup_steps;
  TESSERA_CHECK(after_warmup >= 1, "a warm-up of ", warmup_steps, " of ",
                total_steps, " steps");
  schedule.decay_begin = warmup_steps;
  const auto decay_over = [&](const auto& shape, Decay decay) {
    schedule.decay = decay;
    schedule.decay_steps =
        shape.has_decay_steps() ? shape.decay_steps() : after_warmup;
    schedule.final_ratio = shape.final_ratio();
  };
  if (config.has_cosine()) {
    decay_over(config.cosine(), Decay::kCosine);
  } else if (config.has_linear()) {
    decay_over(config.linear(), Decay::kLinear);
  } else if (config.has_wsd()) {
    const WsdSchedule& wsd = config.wsd();
    TESSERA_CHECK(wsd.decay_steps() <= after_warmup, "a decay of ",
                  wsd.decay_steps(), " of the ", after_warmup,
                  " steps after the warm-up");
    decay_over(
        wsd, wsd.decay() == WsdSchedule::SQRT ? Decay::kSqrt : Decay::kLinear);
    schedule.decay_begin = total_steps - wsd.decay_steps();
  }
  return schedule;
}

AdamWOptions AdamWOptionsOf(const AdamWConfig& config) {
  AdamWOptions options;
  options.beta1 = config.beta1();
  options.beta2 = config.beta2();
  options.eps = static_cast<float>(config.eps());
  options.cautious_decay = config.cautious_weight_decay();
  options.groups[0].weight_decay = static_cast<float>(config.weight_decay());
  for (int i = 0; i < config.groups_size(); ++i) {
    const ParameterGroupConfig& group = config.groups(i);
    options.groups[i] = {
        static_cast<float>(group.has_weight_decay() ? group.weight_decay()
                                                    : config.weight_decay()),
        static_cast<float>(group.lr_multiplier())};
  }
  return options;
}

std::vector<ParameterGroup> ParameterGroupsOf(const AdamWConfig& config) {
  std::vector<ParameterGroup> groups;
  for (const ParameterGroupConfig& group : config.groups()) {
    groups.push_back(
        {group.name(), {group.patterns().begin(), group.patterns().end()}});
  }
  return groups;
}

MuonOptions MuonOptionsOf(const OptimizerConfig& config) {
  const MuonConfig& muon = config.muon();
  const double adamw_lr = config.adamw().lr();
  return {.momentum = static_cast<float>(muon.momentum()),
          .one_minus_momentum = static_cast<float>(1 - muon.momentum()),
          .nesterov = muon.nesterov(),
          .ns_steps = muon.ns_steps(),
          .lr_multiplier =
              muon.has_lr() ? static_cast<float>(muon.lr() / adamw_lr) : 1,
          .match_adamw = muon.adjust_lr() == MuonConfig::MATCH_RMS_ADAMW,
          .normalizes_rows = muon.has_normuon_beta2(),
          .one_minus_beta2 = static_cast<float>(1 - muon.normuon_beta2())};
}

EmaOptions EmaOptionsOf(const EmaConfig& config) {
  return {.one_minus_decay = static_cast<float>(1 - config.decay()),
          .warmup = config.warmup()};
}

std::vector<std::string> MuonPatternsOf(const OptimizerConfig& config) {
  if (!config.has_muon()) return {};
  const auto& patterns = config.muon().patterns();
  if (patterns.empty()) return {"layers.*"};
  return {patterns.begin(), patterns.end()};
}

}  // namespace tessera
