#include "trainers/plan/memory_plan.h"

#include <utility>

#include "framework/base/status_macros.h"

namespace tessera {
namespace {

int64_t SizeOf(const PrecisionPolicy& precision, OpClass op) {
  return static_cast<int64_t>(c10::elementSize(precision[op]));
}

int64_t InputBytes(const Program& program) {
  int64_t bytes = 0;
  for (const ValueInfo& value : program.values()) {
    if (value.role == Role::kInput) bytes += value.type.bytes();
  }
  return bytes;
}

// The bytes of the constants among the inputs.
int64_t ConstantBytes(const Program& program) {
  int64_t bytes = 0;
  for (const ProgramConstant& constant : program.constants()) {
    bytes += program.info(constant.value).type.bytes();
  }
  return bytes;
}

// Replaces the peak in `planned` by that of `schedule` if the latter is higher.
void AddPeak(const Schedule& schedule, const Lifetimes& lifetimes,
             const DeviceInfo& device, PlannedMemory* planned) {
  const std::vector<MemoryMoment> moments =
      MemoryOverTime(schedule, lifetimes,
                     {.blas_workspace_bytes = BlasWorkspaceBytes(device)});
  const MemoryMoment peak = PeakOf(moments);
  MemoryReport& report = planned->report;
  if (peak.total() <=
      report.activations + report.activation_gradients + report.workspace) {
    return;
  }
  report.activations = peak.activations;
  report.activation_gradients = peak.gradients;
  report.workspace = peak.workspace;
  planned->peak = DescribeRun(schedule, peak.run);
  planned->by_kind = LiveBytesByKind(schedule, lifetimes, peak.run);
}

// The memory of the weights and inputs of `program`.
PlannedMemory PlanWeights(const Program& program, const ParameterLayout& layout,
                          const PrecisionPolicy& precision) {
  PlannedMemory planned;
  planned.report.parameters =
      layout.extent * SizeOf(precision, OpClass::kMasterWeights);
  if (precision[OpClass::kWeights] != precision[OpClass::kMasterWeights]) {
    planned.report.shadow =
        layout.extent * SizeOf(precision, OpClass::kWeights);
  }
  planned.report.other = InputBytes(program);
  return planned;
}

}  // namespace

absl::StatusOr<PlannedMemory> PlanTrainingMemory(
    const StepPlan& step, const PrecisionPolicy& precision,
    const DeviceInfo& device) {
  const Program& program = step.loss.program;
  ASSIGN_OR_RETURN(const ParameterLayout layout,
                   PlaceParameters(program.parameters()));
  PlannedMemory planned = PlanWeights(program, layout, precision);
  planned.report.gradients =
      layout.trainable_extent * SizeOf(precision, OpClass::kGradient);
  planned.report.optimizer =
      2 * layout.trainable_extent * SizeOf(precision, OpClass::kOptimizerState);
  planned.report.other +=
      (step.micro_batches - 1) * (InputBytes(program) - ConstantBytes(program));
  AddPeak(step.train, step.train_lifetimes, device, &planned);
  AddPeak(step.evaluate, step.evaluate_lifetimes, device, &planned);
  return planned;
}

absl::StatusOr<PlannedMemory> PlanForwardMemory(
    const Schedule& schedule, const PrecisionPolicy& precision,
    const DeviceInfo& device) {
  ASSIGN_OR_RETURN(const ParameterLayout layout,
                   PlaceParameters(schedule.program->parameters()));
  PlannedMemory planned = PlanWeights(*schedule.program, layout, precision);
  AddPeak(schedule, PlanLifetimes(schedule), device, &planned);
  return planned;
}

}  // namespace tessera
