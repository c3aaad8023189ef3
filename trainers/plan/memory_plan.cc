#include "trainers/plan/memory_plan.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/base/status_macros.h"
#include "framework/program/caching_allocator.h"

namespace tessera {
namespace {

int64_t SizeOf(const PrecisionPolicy& precision, OpClass op) {
  return static_cast<int64_t>(c10::elementSize(precision[op]));
}

// A schedule and where its values are stored.
struct Pass {
  const Schedule& schedule;
  const Lifetimes& lifetimes;
};

// What the allocator counts while passes run, and the moment at which it
// counts most.
struct Replay {
  const Pass* pass = nullptr;
  int run = 0;  // of `pass`
  int64_t allocated = 0, reserved = 0;
};

// Replays the passes after buffers that outlive them; nullopt if `capacity` is
// too little.
std::optional<Replay> ReplayPasses(absl::Span<const int64_t> buffers,
                                   absl::Span<const Pass* const> passes,
                                   CachingAllocator allocator) {
  for (const int64_t bytes : buffers) {
    if (bytes > 0 && !allocator.Allocate(bytes).has_value()) {
      return std::nullopt;
    }
  }
  Replay replay;
  for (const Pass* pass : passes) {
    const std::optional<int> run =
        ReplayAllocations(pass->schedule, pass->lifetimes, &allocator);
    if (!run.has_value()) return std::nullopt;
    if (allocator.peak_allocated() > replay.allocated) {
      replay.pass = pass;
      replay.run = *run;
      replay.allocated = allocator.peak_allocated();
    }
  }
  replay.reserved = allocator.peak_reserved();
  return replay;
}

// The buffers that a program's runs share, which outlive them.
std::vector<int64_t> PlanBuffers(const Program& program, int64_t micro_batches,
                                 const ParameterLayout& layout,
                                 const DeviceInfo& device,
                                 MemoryReport* report) {
  const WeightBytes& weights = layout.weights;
  report->parameters = weights.parameters();
  report->shadow = weights.shadow;
  report->libraries = BlasWorkspaceBytes(device);
  std::vector<int64_t> buffers = {weights.master, weights.shadow, weights.half,
                                  weights.half, report->libraries};
  std::vector<bool> is_constant(program.values().size(), false);
  for (const ProgramConstant& constant : program.constants()) {
    is_constant[constant.value.index] = true;
  }
  for (size_t v = 0; v < program.values().size(); ++v) {
    const ValueInfo& value = program.values()[v];
    if (value.role != Role::kInput) continue;
    buffers.push_back(value.type.bytes() *
                      (is_constant[v] ? 1 : micro_batches));
    report->other += buffers.back();
  }
  return buffers;
}

// Fills in what depends on when the passes allocate.
PlannedMemory PlanPasses(std::vector<int64_t> buffers, int64_t arena,
                         absl::Span<const Pass* const> passes,
                         const DeviceInfo& device, MemoryReport report) {
  buffers.push_back(arena);
  report.context = ContextBytes(device);
  Replay replay = *ReplayPasses(buffers, passes, CachingAllocator());
  if (device.is_cuda() &&
      replay.reserved > device.total_bytes - report.context) {
    // The allocator may still get by, by returning unused segments.
    replay = ReplayPasses(buffers, passes,
                          CachingAllocator(device.total_bytes - report.context))
                 .value_or(replay);
  }
  const MemoryMoment peak =
      MemoryOverTime(replay.pass->schedule, replay.pass->lifetimes)[replay.run];
  report.activations =
      peak.activations - replay.pass->lifetimes.arena_bytes + arena;
  report.activation_gradients = peak.gradients;
  report.workspace = peak.workspace;
  if (device.is_cuda()) {
    report.slack = replay.allocated - report.allocated();
    report.fragmentation = replay.reserved - replay.allocated;
  }
  return {.report = report,
          .peak = DescribeRun(replay.pass->schedule, replay.run),
          .by_kind = LiveBytesByKind(replay.pass->schedule,
                                     replay.pass->lifetimes, replay.run)};
}

}  // namespace

WeightDtypes WeightDtypesOf(const PrecisionPolicy& precision) {
  return {.master = precision[OpClass::kMasterWeights],
          .compute = precision[OpClass::kWeights]};
}

absl::StatusOr<PlannedMemory> PlanTrainingMemory(
    const StepPlan& step, const PrecisionPolicy& precision,
    const DeviceInfo& device, bool evaluates) {
  const Program& program = step.loss.program;
  ASSIGN_OR_RETURN(
      const ParameterLayout layout,
      PlaceParameters(program.parameters(), WeightDtypesOf(precision)));
  MemoryReport report;
  std::vector<int64_t> buffers =
      PlanBuffers(program, step.micro_batches, layout, device, &report);
  if (absl::c_any_of(step.train.runs,
                     [](const OpRun& run) { return run.beside_until >= 0; })) {
    // The stream of these runs has a workspace of its own.
    buffers.push_back(BlasWorkspaceBytes(device));
    report.libraries += buffers.back();
  }
  report.gradients =
      layout.trainable_extent * SizeOf(precision, OpClass::kGradient);
  const int64_t moment =
      layout.trainable_extent * SizeOf(precision, OpClass::kOptimizerState);
  report.optimizer = 2 * moment;
  buffers.insert(buffers.end(), {report.gradients, moment, moment});
  const Pass train = {step.train, step.train_lifetimes};
  const Pass evaluate = {step.evaluate, step.evaluate_lifetimes};
  std::vector<const Pass*> passes = {&train, &train};
  if (evaluates) passes.push_back(&evaluate);
  const int64_t arena = std::max(step.train_lifetimes.arena_bytes,
                                 step.evaluate_lifetimes.arena_bytes);
  return PlanPasses(std::move(buffers), arena, passes, device, report);
}

absl::StatusOr<PlannedMemory> PlanForwardMemory(
    const Schedule& schedule, const PrecisionPolicy& precision,
    const DeviceInfo& device) {
  ASSIGN_OR_RETURN(const ParameterLayout layout,
                   PlaceParameters(schedule.program->parameters(),
                                   WeightDtypesOf(precision)));
  MemoryReport report;
  std::vector<int64_t> buffers = PlanBuffers(
      *schedule.program, /*micro_batches=*/1, layout, device, &report);
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  const Pass forward = {schedule, lifetimes};
  return PlanPasses(std::move(buffers), lifetimes.arena_bytes,
                    {&forward, &forward}, device, report);
}

}  // namespace tessera
