#include "framework/optim/optimizer_config.h"

#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/optim/adamw_math.h"

namespace tessera {
namespace {

// The step computes in FP32, where what is too large becomes infinity.
void CheckNotNegative(double value, absl::string_view field,
                      const Violations& violations) {
  if (!(value >= 0)) {
    violations.Add(field, absl::StrCat("must be >= 0; is ", value));
    return;
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  violations.Check(value <= kMost, field,
                   absl::StrCat("must be a number of FP32, at most ", kMost,
                                "; is ", value));
}

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
  violations.Check(steps >= 1, "decay_steps",
                   absl::StrCat("must be >= 1; is ", steps));
}

void ValidateGroup(const ParameterGroupConfig& group,
                   const Violations& violations) {
  violations.Check(!group.name().empty(), "name", "must be given");
  violations.Check(group.patterns_size() > 0, "patterns",
                   "must hold at least one pattern; \"*\" matches every "
                   "parameter");
  if (group.has_weight_decay()) {
    CheckNotNegative(group.weight_decay(), "weight_decay", violations);
  }
  CheckNotNegative(group.lr_multiplier(), "lr_multiplier", violations);
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

// Of the shapes whose decay_steps may be left out.
template <typename Shape>
void ValidateDecay(const Shape& shape, const Violations& violations) {
  if (shape.has_decay_steps()) {
    CheckDecaySteps(shape.decay_steps(), violations);
  }
  CheckFinalRatio(shape.final_ratio(), violations);
}

}  // namespace

void Validate(const OptimizerConfig& config, Violations violations) {
  if (config.has_adamw()) {
    Validate(config.adamw(), violations.In("adamw"));
  } else {
    violations.Add("algorithm",
                   "must be given; adamw { lr: ... } is the one "
                   "that exists");
  }
  Validate(config.schedule(), violations.In("schedule"));
  if (!config.has_clip_norm()) return;
  if (config.clip_norm() > 0) {
    violations.CheckPositiveInFp32(config.clip_norm(), "clip_norm");
  } else {
    violations.Add("clip_norm",
                   absl::StrCat("must be > 0, or left out for no clipping; is ",
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
  CheckNotNegative(config.weight_decay(), "weight_decay", violations);
  violations.Check(config.groups_size() <= kMaxAdamWGroups, "groups",
                   absl::StrCat("there may be at most ", kMaxAdamWGroups,
                                "; there are ", config.groups_size()));
  std::set<std::string> names;
  for (int i = 0; i < config.groups_size(); ++i) {
    const Violations group = violations.In(absl::StrCat("groups[", i, "]"));
    ValidateGroup(config.groups(i), group);
    group.Check(names.insert(config.groups(i).name()).second, "name",
                absl::StrCat("\"", config.groups(i).name(),
                             "\" is another group's too"));
  }
}

void Validate(const ScheduleConfig& config, Violations violations) {
  violations.Check(config.warmup_steps() >= 0, "warmup_steps",
                   absl::StrCat("must be >= 0; is ", config.warmup_steps()));
  violations.Check(
      config.warmup_ratio() >= 0 && config.warmup_ratio() < 1, "warmup_ratio",
      absl::StrCat("must be in [0, 1), a share of training.steps; is ",
                   config.warmup_ratio(),
                   "; warmup_steps takes a number of steps"));
  if (config.has_cosine()) {
    ValidateDecay(config.cosine(), violations.In("cosine"));
  } else if (config.has_linear()) {
    ValidateDecay(config.linear(), violations.In("linear"));
  } else if (config.has_wsd()) {
    ValidateWsd(config.wsd(), violations.In("wsd"));
  }
}

}  // namespace tessera
