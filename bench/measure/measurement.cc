#include "bench/measure/measurement.h"

#include "bench/measure/dtype_observation.h"
#include "bench/measure/instrument_cost.h"
#include "bench/measure/utilisation.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

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
       {"phases", "phase_ratios"},
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
      {TrainingStudy::SNAPSHOT, {}, {.snapshots = true}, WriteSnapshot},
      {TrainingStudy::UTILISATION, {"utilisation"}, {}, RecordUtilisation},
      {TrainingStudy::INSTRUMENTS, {"instruments"}, {}, RecordInstrumentCost},
  };
  return *table;
}

}  // namespace tessera
