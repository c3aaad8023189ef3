#include <cstdint>
#include <utility>

#include "bench/measure/measurement.h"
#include "framework/base/status_macros.h"
#include "framework/observe/block_path.h"
#include "framework/observe/phase_timer.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Milliseconds by phase; with `detail` also inside forward and backward.
absl::StatusOr<Json> PhaseTimes(TrainingCell& cell, bool detail) {
  PhaseTimer timer(
      {.device = cell.device(), .detail_every_steps = detail ? 1 : 0});
  const auto attached = cell.Attach(&timer);
  Json phases = Json::object();
  int64_t steps = 0;
  const auto step = [&]() -> absl::Status {
    RETURN_IF_ERROR(cell.Observed(++steps, [&] { return cell.Step(); }));
    // The events of a graph hold the times of its last launch only.
    StepRecord record;
    RETURN_IF_ERROR(timer.AddTo(&record));
    // A block's part summed over all blocks: "forward/blocks/attention".
    for (const PhaseTime& phase : record.phases) {
      const std::string path = FoldBlocks(phase.path, "blocks");
      phases[path] = phases.value(path, 0.0) + phase.ms;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(step());  // records the graph
  phases.clear();
  steps = 0;
  const Repetition repetition = cell.repetition();
  RETURN_IF_ERROR(Repeat(repetition.iterations, repetition, step));
  for (Json& ms : phases) {
    ms = ms.get<double>() / static_cast<double>(steps);
  }
  return phases;
}

// Percent of forward or backward, both timed with the events inside them.
Json SharesOf(const Json& phases) {
  Json shares = Json::object();
  for (const auto& [path, ms] : phases.items()) {
    const size_t end = path.find('/');
    if (end == std::string::npos) continue;
    const double whole = phases[path.substr(0, end)];
    shares[path] = 100 * ms.get<double>() / whole;
  }
  return shares;
}

}  // namespace

absl::Status MeasurePhases(TrainingCell& cell, Json& figures) {
  // The phases of the step apart, because events inside them take time.
  ASSIGN_OR_RETURN(const Json inside, PhaseTimes(cell, /*detail=*/true));
  ASSIGN_OR_RETURN(Json phases, PhaseTimes(cell, /*detail=*/false));
  const double forward = phases["forward"], backward = phases["backward"];
  figures["phase_ratios"] = {
      {"backward_to_forward", backward / forward},
      {"optimizer_to_both",
       phases["optimizer"].get<double>() / (forward + backward)}};
  figures["phases"] = std::move(phases);
  figures["phase_shares"] = SharesOf(inside);
  return absl::OkStatus();
}

}  // namespace tessera
