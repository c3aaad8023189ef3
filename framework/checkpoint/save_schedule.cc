#include "framework/checkpoint/save_schedule.h"

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
std::string Every(double count, absl::string_view unit) {
  return count == 1 ? absl::StrCat("every ", unit)
                    : absl::StrCat("every ", count, " ", unit, "s");
}

}  // namespace

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
