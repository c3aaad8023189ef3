#include <optional>
#include <string>

#include "bench/measure/measurement.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "framework/observe/format.h"
#include "trainers/run/session_description.h"

namespace tessera {

using Json = nlohmann::ordered_json;

absl::Status MeasureStep(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(const Times times, cell.Time([&] { return cell.Call(); }));
  figures["step_ms"] = cell.FiguresOf(times);
  figures["step_wall_ms"] = times.wall_ms;
  const RunPlan& plan = cell.plan();
  figures["parameters_m"] = plan.num_parameters * 1e-6;
  figures["backend"] = std::string(plan.backend.backend->name());
  if (cell.study().training().call() != TrainingStudy::STEP) {
    return absl::OkStatus();
  }
  const double seconds = figures["step_ms"]["mean"].get<double>() * 1e-3;
  const double tokens_per_s = plan.tokens_per_step() / seconds;
  // The rate of one GPU: the tokens of a step are those of all ranks.
  const double tflops = tokens_per_s * plan.flops_per_token /
                        static_cast<double>(plan.world.world_size) * 1e-12;
  figures["tokens_per_s"] = tokens_per_s;
  figures["tflops"] = tflops;
  if (const std::optional<double> peak = PeakTflops(plan); peak.has_value()) {
    figures["mfu_pct"] = 100 * tflops / *peak;
    figures["peak_tflops"] = *peak;
  }
  return absl::OkStatus();
}

absl::Status MeasureParts(TrainingCell& cell, Json& figures) {
  ResetPeakMemory(cell.device());
  ASSIGN_OR_RETURN(const Times forward,
                   cell.Time([&] { return cell.Forward(); }));
  figures["forward_ms"] = cell.FiguresOf(forward);
  if (cell.Records(TrainingStudy::MEMORY)) {
    // What waits for the backward pass and the update is idle in inference.
    const MemoryReport& planned = cell.plan().memory.report;
    figures["memory"]["forward_peak_gib"] =
        (CurrentMemory(cell.device()).peak_allocated - planned.gradients -
         planned.optimizer) /
        kGibibyte;
  }
  ASSIGN_OR_RETURN(const Times both,
                   cell.Time([&] { return cell.ForwardBackward(); }));
  figures["forward_backward_ms"] = cell.FiguresOf(both);
  return absl::OkStatus();
}

}  // namespace tessera
