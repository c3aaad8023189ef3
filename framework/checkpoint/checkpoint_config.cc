#include "framework/checkpoint/checkpoint_config.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void Validate(const CheckpointConfig& config, Violations violations) {
  violations.Check(!config.has_every_steps() || config.every_steps() >= 1,
                   "every_steps",
                   absl::StrCat("must be >= 1; is ", config.every_steps(),
                                "; remove the field to save by every_minutes"));
  constexpr double kLeastMinutes = 0.001, kMostMinutes = 1e6;
  const double minutes = config.every_minutes();
  violations.Check(
      minutes == 0 || (minutes >= kLeastMinutes && minutes <= kMostMinutes),
      "every_minutes",
      absl::StrCat("must be 0 or in [", kLeastMinutes, ", ", kMostMinutes,
                   "]; is ", minutes,
                   "; 0 saves only by every_steps and at the end"));
  violations.Check(
      !config.has_init_from() || !config.init_from().empty(), "init_from",
      "must name a folder; is empty; remove the field for random weights");
  violations.Check(config.keep_last() >= 1, "keep_last",
                   absl::StrCat("must be >= 1; is ", config.keep_last()));
  violations.Check(
      !config.has_keep_every_steps() || config.keep_every_steps() >= 1,
      "keep_every_steps",
      absl::StrCat("must be >= 1; is ", config.keep_every_steps(),
                   "; remove the field to keep only the newest"));
}

}  // namespace tessera
