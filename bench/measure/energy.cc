#include <optional>

#include "bench/measure/measurement.h"
#include "bench/measure/sensed_work.h"
#include "framework/base/status_macros.h"

namespace tessera {

absl::Status MeasureEnergy(TrainingCell& cell,
                           nlohmann::ordered_json& figures) {
  if (!cell.device().is_cuda()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const SensedWork sensed,
      RepeatUnderSensors([&] { return cell.Step(); }, cell.plan().device,
                         absl::Milliseconds(500)));
  nlohmann::ordered_json& energy = figures["energy"];
  energy = nlohmann::ordered_json::object();
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value.has_value()) energy[name] = *value;
  };
  add("joules", sensed.joules);
  if (sensed.joules.has_value()) {
    energy["joules_per_token"] =
        *sensed.joules / static_cast<double>(cell.plan().tokens_per_step());
  }
  add("power_w", sensed.gpu.power_w);
  add("sm_mhz", sensed.gpu.sm_mhz);
  return absl::OkStatus();
}

}  // namespace tessera
