#include "trainers/plan/memory_plan.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/base/status_macros.h"
#include "framework/dist/exchanged_sum.h"
#include "framework/optim/muon_slices.h"
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

// What a run asks LibTorch's allocator for.
struct Requests {
  std::vector<int64_t> buffers;     // outlive the passes
  std::vector<int64_t> workspaces;  // of cuBLAS, as well
  std::vector<const Pass*> passes;  // in order
  // Graphs have a pool of their own, which also holds the workspaces and what
  // runs before a graph is recorded (CudaGraph::Rehearse).
  bool graph = false;
  // Workspaces of what runs outside of a graph, when no pass does.
  std::vector<int64_t> between_passes;
};

// nullopt if `capacity` is too little.
std::optional<Replay> ReplayRequests(
    const Requests& requests,
    int64_t capacity = std::numeric_limits<int64_t>::max()) {
  const auto allocate = [](absl::Span<const int64_t> all,
                           CachingAllocator* allocator) {
    return absl::c_all_of(all, [&](int64_t bytes) {
      return bytes == 0 || allocator->Allocate(bytes).has_value();
    });
  };
  CachingAllocator common(capacity);
  if (!allocate(requests.buffers, &common)) return std::nullopt;
  CachingAllocator pool(capacity - common.reserved());
  CachingAllocator& allocator = requests.graph ? pool : common;
  const int64_t before = requests.graph ? common.allocated() : 0;
  if (!allocate(requests.workspaces, &allocator)) return std::nullopt;
  Replay replay;
  for (const Pass* pass : requests.passes) {
    const std::optional<int> run =
        ReplayAllocations(pass->schedule, pass->lifetimes, &allocator);
    if (!run.has_value()) return std::nullopt;
    if (before + allocator.peak_allocated() > replay.allocated) {
      replay.pass = pass;
      replay.run = *run;
      replay.allocated = before + allocator.peak_allocated();
    }
  }
  if (!allocate(requests.between_passes, &common)) return std::nullopt;
  replay.reserved = common.peak_reserved() + pool.peak_reserved();
  return replay;
}

// The buffers that a program's runs share, and the workspace of their stream.
Requests PlanBuffers(const Program& program, int64_t micro_batches,
                     const ParameterLayout& layout, const DeviceInfo& device,
                     MemoryReport* report) {
  const WeightBytes& weights = layout.weights;
  report->parameters = weights.parameters();
  report->shadow = weights.shadow;
  report->libraries = BlasWorkspaceBytes(device);
  Requests requests = {
      .buffers = {weights.master, weights.shadow, weights.high, weights.low},
      .workspaces = {report->libraries}};
  std::vector<bool> is_constant(program.values().size(), false);
  for (const ProgramConstant& constant : program.constants()) {
    is_constant[constant.value.index] = true;
  }
  for (size_t v = 0; v < program.values().size(); ++v) {
    const ValueInfo& value = program.values()[v];
    if (value.role != Role::kInput) continue;
    requests.buffers.push_back(value.type.bytes() *
                               (is_constant[v] ? 1 : micro_batches));
    report->other += requests.buffers.back();
  }
  return requests;
}

// Fills in what depends on when the passes allocate.
PlannedMemory PlanPasses(Requests requests, int64_t arena,
                         const DeviceInfo& device, MemoryReport report) {
  requests.buffers.push_back(arena);
  report.context = ContextBytes(device);
  Replay replay = *ReplayRequests(requests);
  const int64_t most =
      device.total_bytes - report.context - report.communication;
  if (device.is_cuda() && !requests.graph && replay.reserved > most) {
    // The allocator may still get by, by returning unused segments. While it
    // serves a graph's pool it returns none.
    replay = ReplayRequests(requests, most).value_or(replay);
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

bool HasProducts(const Schedule& schedule, StepStream stream) {
  return absl::c_any_of(schedule.runs, [&](const StepRun& run) {
    return run.stream == stream && schedule.CostOf(run).product_flops > 0;
  });
}

// What NCCL 2.28.9 takes beside the allocator, measured on two H100: 0.73 GiB
// with one communicator, 0.25 more with a second, that of copy engines.
// Replicas of shards have two more, which are assumed to take as much.
int64_t NcclBytes(const Sharding& sharding, const DeviceInfo& device) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  if (!device.is_cuda() || sharding.shards * sharding.replicas == 1) return 0;
  const int others =
      (sharding.copy_engines ? 1 : 0) + (sharding.replicas > 1 ? 2 : 0);
  return (750 + 256 * others) * kMiB;
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
  ASSIGN_OR_RETURN(const ParameterLayout layout,
                   PlaceParameters(program.parameters(),
                                   WeightDtypesOf(precision), step.sharding));
  MemoryReport report;
  Requests requests =
      PlanBuffers(program, step.micro_batches, layout, device, &report);
  requests.graph = step.graph;
  // Other streams with matrix products have a workspace of their own.
  for (const StepStream stream :
       {StepStream::kWeightGradients, StepStream::kUpdate}) {
    if (!HasProducts(step.train, stream)) continue;
    requests.workspaces.push_back(BlasWorkspaceBytes(device));
    report.libraries += requests.workspaces.back();
    if (step.graph && stream == StepStream::kUpdate) {  // TrainStep::Flush()
      requests.between_passes.push_back(BlasWorkspaceBytes(device));
    }
  }
  report.gradients = step.sharding.HeldGradients(layout.trainable_extent) *
                     SizeOf(precision, OpClass::kGradient);
  if (IsExchanged(precision[OpClass::kGradient], step.sharding.shards,
                  step.sharding.copy_engines)) {
    requests.buffers.push_back(LargestSection(layout.sections) *
                               SizeOf(precision, OpClass::kGradient));
    report.other += requests.buffers.back();
  }
  report.communication = NcclBytes(step.sharding, device);
  const auto moment = [&](int64_t extent) {
    return step.sharding.HeldMoments(extent) *
           SizeOf(precision, OpClass::kOptimizerState);
  };
  const int64_t first = moment(layout.trainable_extent);
  const int64_t second = moment(layout.second_moments);
  const int64_t ema = step.ema
                          ? step.sharding.HeldMoments(layout.trainable_extent) *
                                static_cast<int64_t>(sizeof(float))
                          : 0;
  report.optimizer = first + second + ema;
  const int64_t muon = MuonWorkspaceBytes(
      MuonSlices(layout.slices, layout.sections, step.sharding.shards),
      MuonDtype(precision));
  report.other += muon;
  requests.buffers.insert(requests.buffers.end(),
                          {report.gradients, first, second, muon, ema});
  const Pass train = {step.train, step.train_lifetimes};
  const Pass evaluate = {step.evaluate, step.evaluate_lifetimes};
  requests.passes = {&train, &train};
  if (evaluates) requests.passes.push_back(&evaluate);
  return PlanPasses(std::move(requests), step.arena_bytes(), device, report);
}

absl::StatusOr<PlannedMemory> PlanForwardMemory(
    const Schedule& schedule, const PrecisionPolicy& precision,
    const DeviceInfo& device, int64_t more_bytes) {
  WeightDtypes weights = WeightDtypesOf(precision);
  weights.read_only = true;
  ASSIGN_OR_RETURN(const ParameterLayout layout,
                   PlaceParameters(schedule.program->parameters(), weights));
  MemoryReport report;
  Requests requests = PlanBuffers(*schedule.program, /*micro_batches=*/1,
                                  layout, device, &report);
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  requests.buffers.push_back(more_bytes);
  report.other += more_bytes;
  const Pass forward = {schedule, lifetimes};
  requests.passes = {&forward, &forward};
  return PlanPasses(std::move(requests), lifetimes.arena_bytes, device, report);
}

}  // namespace tessera
