#include "bench/measure/measurement.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "attention_backends/compiled_fused/banded_product.h"
#include "attention_backends/compiled_fused/softmax_compiler.h"
#include "bench/measure/dtype_observation.h"
#include "bench/measure/instrument_cost.h"
#include "bench/measure/sensed_work.h"
#include "bench/measure/timing.h"
#include "bench/measure/utilisation.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/float_type_of.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

absl::Status MeasureEnergy(TrainingCell& cell, Json& figures) {
  constexpr int kWindows = 3;
  if (!cell.device().is_cuda()) return absl::OkStatus();
  std::map<std::string, std::vector<double>> samples;
  const auto add = [&](const char* name, std::optional<double> value,
                       double divisor = 1) {
    if (value.has_value()) samples[name].push_back(*value / divisor);
  };
  for (int i = 0; i < kWindows; ++i) {
    ASSIGN_OR_RETURN(
        const SensedWork sensed,
        RepeatUnderSensors([&] { return cell.Step(); }, cell.plan().device,
                           absl::Milliseconds(500)));
    add("joules", sensed.joules);
    add("joules_per_token", sensed.joules,
        static_cast<double>(cell.plan().tokens_per_step()));
    add("power_w", sensed.gpu.power_w);
    add("sm_mhz", sensed.gpu.sm_mhz);
  }
  for (const auto& [name, values] : samples) {
    figures["energy"][name] = ToJson(Summarize(values));
  }
  return absl::OkStatus();
}

absl::Status MeasureCompilation(TrainingCell& cell, Json& figures) {
  if constexpr (kCudaBuild) {
    const RunPlan& plan = cell.plan();
    if (!cell.device().is_cuda() ||
        plan.backend.backend->name() != "COMPILED_FUSED") {
      return absl::OkStatus();
    }
    const fused::SoftmaxSpec spec = {.type = FloatTypeOf(plan.attention.dtype),
                                     .mask = fused::MaskOf(plan.attention)};
    const absl::Time begin = MonotonicNow();
    RETURN_IF_ERROR(fused::CompileSoftmax(spec, plan.device.compute_capability,
                                          /*cache=*/nullptr)
                        .status());
    figures["compile_ms"] = MsSince(begin);
  }
  return absl::OkStatus();
}

absl::Status RecordDtypes(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(figures["dtypes"]["toy"],
                   ToyModelDtypes(TargetOf(cell.plan())));
  figures["dtypes"]["model"] = LanguageModelDtypes(cell.session());
  return absl::OkStatus();
}

absl::Status RecordUtilisation(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(figures["utilisation"], MeasureUtilisation(cell.session()));
  return absl::OkStatus();
}

absl::Status RecordInstrumentCost(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(figures["instruments"],
                   MeasureInstrumentCost(cell.session(), cell.study()));
  return absl::OkStatus();
}

}  // namespace

absl::Span<const Measurement> Measurements() {
  static const auto* const table = new std::vector<Measurement>{
      {TrainingStudy::START_UP, {"start_up"}, {}, MeasureStartUp},
      {TrainingStudy::FIRST_STEPS, {}, {}, nullptr},
      {TrainingStudy::UNSPECIFIED, {"setup_ms"}, {}, MeasureSetUp},
      {TrainingStudy::COUNTERS, {"counters"}, {}, MeasureCounters},
      {TrainingStudy::UNSPECIFIED,
       {"step_ms", "step_wall_ms", "tokens_per_s", "tflops", "mfu_pct",
        "peak_tflops", "parameters_m", "backend"},
       {},
       MeasureStep},
      {TrainingStudy::MEMORY, {"memory"}, {}, MeasurePeakMemory},
      {TrainingStudy::PARTS,
       {"forward_ms", "forward_backward_ms", "memory", "forward_kernels",
        "forward_allocations"},
       {},
       MeasureParts},
      {TrainingStudy::PHASES,
       {"phases", "phase_ratios", "phase_shares"},
       {.phases_apart = true},
       MeasurePhases},
      {TrainingStudy::KERNELS,
       {"kernels", "forward_kernels"},
       {.phases_apart = true},
       MeasureKernels},
      {TrainingStudy::ENERGY, {"energy"}, {}, MeasureEnergy},
      {TrainingStudy::COMPILE, {"compile_ms"}, {}, MeasureCompilation},
      {TrainingStudy::DTYPES, {"dtypes"}, {}, RecordDtypes},
      {TrainingStudy::ALLOCATIONS,
       {"allocations", "forward_allocations"},
       {.phases_apart = true, .every_allocation = true},
       MeasureAllocations},
      {TrainingStudy::TIMELINES,
       {"timelines"},
       {.phases_apart = true, .every_allocation = true},
       MeasureTimelines},
      {TrainingStudy::SNAPSHOT, {}, {.snapshots = true}, WriteSnapshot},
      {TrainingStudy::UTILISATION, {"utilisation"}, {}, RecordUtilisation},
      {TrainingStudy::INSTRUMENTS, {"instruments"}, {}, RecordInstrumentCost},
      {TrainingStudy::DECODE, {"decode"}, {}, MeasureDecode},
  };
  return *table;
}

}  // namespace tessera
