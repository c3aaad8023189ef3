#include "bench/measure/measurement.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "framework/observe/format.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

double ErrorPct(int64_t plan, int64_t measured) {
  return 100.0 * static_cast<double>(plan - measured) /
         static_cast<double>(measured);
}

Json Categories(const MemoryReport& planned) {
  return {{"parameters", planned.parameters / kGibibyte},
          {"shadow", planned.shadow / kGibibyte},
          {"gradients", planned.gradients / kGibibyte},
          {"optimizer", planned.optimizer / kGibibyte},
          {"activations", planned.activations / kGibibyte},
          {"activation_gradients", planned.activation_gradients / kGibibyte},
          {"workspace", planned.workspace / kGibibyte},
          {"libraries", planned.libraries / kGibibyte},
          {"other", planned.other / kGibibyte},
          {"rounding", planned.slack / kGibibyte}};
}

}  // namespace

absl::Status MeasurePeakMemory(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(const MemoryUse use, cell.PeakOfSteps());
  const PlannedMemory& plan = cell.plan().memory;
  const MemoryReport& planned = plan.report;
  Json& memory = figures["memory"];
  memory["peak_gib"] = use.peak_allocated / kGibibyte;
  memory["reserved_gib"] = use.peak_reserved / kGibibyte;
  memory["planned_gib"] = planned.allocated() / kGibibyte;
  memory["planned_reserved_gib"] = planned.reserved() / kGibibyte;
  if (cell.device().is_cuda()) {
    memory["plan_error_pct"] =
        ErrorPct(planned.allocated(), use.peak_allocated);
    memory["reserved_error_pct"] =
        ErrorPct(planned.reserved(), use.peak_reserved);
    memory["context_gib"] =
        (BytesInUse(cell.device()) - use.reserved) / kGibibyte;
    memory["planned_context_gib"] = planned.context / kGibibyte;
  }
  memory["at"] = plan.peak;
  memory["categories_gib"] = Categories(planned);
  const auto kept = static_cast<double>(cell.session().step().kept_bytes());
  memory["kept_gib"] = kept / kGibibyte;
  memory["kept_per_block_mib"] =
      kept / kMebibyte / static_cast<double>(cell.plan().shape.layers);
  return absl::OkStatus();
}

}  // namespace tessera
