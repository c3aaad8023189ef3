#include "framework/checkpoint/checkpoint_config.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

constexpr double kDefaultMinutes = 15;

double SaveMinutes(const CheckpointConfig& config) {
  if (config.has_every_minutes()) return config.every_minutes();
  return config.has_every_steps() ? 0 : kDefaultMinutes;
}

// "every step", "every 10 steps"
template <typename Count>
std::string Every(Count count, absl::string_view unit) {
  return count == 1 ? absl::StrCat("every ", unit)
                    : absl::StrCat("every ", count, " ", unit, "s");
}

}  // namespace

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
  violations.CheckAtLeast(1, config.keep_last(), "keep_last");
  violations.Check(
      !config.has_keep_every_steps() || config.keep_every_steps() >= 1,
      "keep_every_steps",
      absl::StrCat("must be >= 1; is ", config.keep_every_steps(),
                   "; remove the field to keep only the newest"));
}

absl::Duration SaveInterval(const CheckpointConfig& config) {
  const double minutes = SaveMinutes(config);
  return minutes > 0 ? absl::Minutes(minutes) : absl::InfiniteDuration();
}

std::string DescribeSaves(const CheckpointConfig& config) {
  std::vector<std::string> when;
  if (config.has_every_steps()) {
    when.push_back(Every(config.every_steps(), "step"));
  }
  if (const double minutes = SaveMinutes(config); minutes > 0) {
    when.push_back(Every(minutes, "minute"));
  }
  when.push_back("after the last step");
  return absl::StrJoin(when, " and ");
}

}  // namespace tessera
