#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "bench/measure/cell_measurement.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/format.h"
#include "framework/program/memory.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Bytes of an element of a product's operand, with its share of a scale: FP8
// has one scale per tensor, FP4 (NVFP4) an FP8 scale for 16 elements. 2: the
// operands stay as the plan has them.
double BytesOf(MemoryFormatsStudy::Format format) {
  switch (format) {
    case MemoryFormatsStudy::FP8:
      return 1;
    case MemoryFormatsStudy::FP4:
      return 0.5 + 1.0 / 16;
    default:
      return 2;
  }
}

bool IsProduct(const Program& program, int op) {
  return op >= 0 && program.ops()[op].op->kind() == "linear";
}

// Bytes of the weights that only matrix products read.
int64_t ProductWeightBytes(const Program& program) {
  std::vector<bool> others(program.parameters().size(), false);
  for (int op = 0; op < static_cast<int>(program.ops().size()); ++op) {
    if (IsProduct(program, op)) continue;
    for (const Value value : program.ops()[op].operands) {
      const int parameter = program.values()[value.index].parameter;
      if (parameter >= 0) others[parameter] = true;
    }
  }
  int64_t bytes = 0;
  for (const ValueInfo& value : program.values()) {
    if (value.role == Role::kParameter && !others[value.parameter] &&
        value.type.dtype == at::kBFloat16) {
      bytes += value.type.bytes();
    }
  }
  return bytes;
}

// Bytes of the values that wait for the backward pass and that only matrix
// products read there.
int64_t KeptProductOperandBytes(const Schedule& schedule,
                                const Lifetimes& lifetimes) {
  std::vector<bool> others(schedule.values.size(), false);
  for (const StepRun& run : schedule.runs) {
    if (run.phase == Phase::kForward) continue;
    if (run.is_backward() && IsProduct(*schedule.program, run.op)) continue;
    for (const Access& access : AccessesOf(schedule, run)) {
      if (!access.writes && access.value >= 0) others[access.value] = true;
    }
  }
  int64_t bytes = 0;
  for (const Buffer& buffer : lifetimes.buffers) {
    // A gradient may be written over what was kept.
    const bool operand = absl::c_none_of(buffer.values, [&](int value) {
      const ValueInfo& info = schedule.values[value];
      return info.role == Role::kActivation &&
             (others[value] || info.type.dtype != at::kBFloat16);
    });
    if (operand && IsKept(schedule, buffer)) bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace

FigureNames MemoryFormatsFigures(const Study& /*study*/) {
  return {{"parameters_m", "weights_gib", "copies_gib", "gradients_gib",
           "moments_gib", "activations_gib", "kept_gib", "operands_gib",
           "total_gib"}};
}

CellFigures MeasureMemoryFormats(const OpenedCell& opened) {
  const MemoryFormatsStudy& study = opened.study.memory_formats();
  RunConfig config = std::get<RunConfig>(opened.config);
  ASSIGN_OR_RETURN(const DeviceInfo gpu, DeviceToPlanFor(study.gpu()));
  config.mutable_training()->set_device(TrainingConfig::CUDA);
  config.mutable_precision()->set_mode(
      study.format() == MemoryFormatsStudy::FP32 ? PrecisionConfig::FP32
                                                 : PrecisionConfig::BF16);
  ASSIGN_OR_RETURN(const RunPlan plan, PlanWithoutFit(config, {}, gpu));
  const StepPlan& step = *plan.step;
  const MemoryReport& memory = plan.memory.report;
  const double share = BytesOf(study.format()) / 2;
  const bool has_copies = share < 1;
  // A product reads its weights along their rows in the forward pass and along
  // their columns in the backward pass; products in 8 bits and less want both
  // as rows.
  const double copies =
      has_copies
          ? 2 * share *
                static_cast<double>(ProductWeightBytes(step.loss.program))
          : 0;
  const auto operands = static_cast<double>(
      KeptProductOperandBytes(step.train, step.train_lifetimes));
  const double saved = operands * (1 - share);
  const auto kept =
      static_cast<double>(KeptBytes(step.train, step.train_lifetimes));
  return Json{
      {"parameters_m",
       static_cast<double>(CountParameters(step.loss.program.parameters())) /
           1e6},
      {"weights_gib", (memory.parameters + memory.shadow) / kGibibyte},
      {"copies_gib", copies / kGibibyte},
      {"gradients_gib", memory.gradients / kGibibyte},
      {"moments_gib", memory.optimizer / kGibibyte},
      {"activations_gib",
       (memory.activations + memory.activation_gradients - saved) / kGibibyte},
      {"kept_gib", (kept - saved) / kGibibyte},
      {"operands_gib", operands * share / kGibibyte},
      {"total_gib", (memory.allocated() - saved + copies) / kGibibyte}};
}

}  // namespace tessera
