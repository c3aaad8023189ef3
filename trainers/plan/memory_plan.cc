#include "trainers/plan/memory_plan.h"

#include <iterator>
#include <limits>
#include <optional>
#include <set>
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
  std::vector<const Pass*> passes;  // in order
  // Graphs have a pool of their own, which also holds the workspaces and what
  // runs before a graph is recorded (CudaGraph::Rehearse).
  bool graph = false;
  // Of cuBLAS. Streams keep them, but a graph's recording begins without any.
  ProductWorkspaces products;
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
  const ProductWorkspaces& products = requests.products;
  for (int64_t i = 0; i < products.streams; ++i) {
    if (!allocate({products.bytes}, &allocator)) return std::nullopt;
  }
  Replay replay;
  for (const Pass* pass : requests.passes) {
    const std::optional<AllocatedPeak> peak =
        ReplayAllocations(pass->schedule, pass->lifetimes, &allocator,
                          requests.graph ? products : ProductWorkspaces());
    if (!peak.has_value()) return std::nullopt;
    if (before + peak->allocated > replay.allocated) {
      replay.pass = pass;
      replay.run = peak->run;
      replay.allocated = before + peak->allocated;
    }
  }
  if (!allocate(requests.between_passes, &common)) return std::nullopt;
  replay.reserved = common.peak_reserved() + pool.peak_reserved();
  return replay;
}

// The buffers that a program's runs share, and the workspace of their stream.
// There are `batches` of `micro_batches` on the device.
Requests PlanBuffers(const Program& program, int64_t batches,
                     int64_t micro_batches, const ParameterLayout& layout,
                     const DeviceInfo& device, MemoryReport* report) {
  const WeightBytes& weights = layout.weights;
  report->parameters = weights.parameters();
  report->shadow = weights.shadow;
  Requests requests = {
      .buffers = {weights.master, weights.shadow, weights.high, weights.low},
      .products = {.bytes = BlasWorkspaceBytes(device), .streams = 1}};
  std::vector<bool> is_constant(program.values().size(), false);
  for (const ProgramConstant& constant : program.constants()) {
    is_constant[constant.value.index] = true;
  }
  for (size_t v = 0; v < program.values().size(); ++v) {
    const ValueInfo& value = program.values()[v];
    if (value.role != Role::kInput) continue;
    const int64_t copies = is_constant[v] ? 1 : batches;
    const int64_t bytes =
        value.type.bytes() * (is_constant[v] ? 1 : micro_batches);
    requests.buffers.insert(requests.buffers.end(), copies, bytes);
    report->other += copies * bytes;
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
  report.libraries =
      requests.products.bytes *
      (requests.graph
           ? std::ssize(StreamsWithProducts(replay.pass->schedule, replay.run))
           : requests.products.streams);
  if (device.is_cuda()) {
    report.slack = replay.allocated - report.allocated();
    report.fragmentation = replay.reserved - replay.allocated;
  }
  return {.report = report,
          .peak = DescribeRun(replay.pass->schedule, replay.run),
          .by_kind = LiveBytesByKind(replay.pass->schedule,
                                     replay.pass->lifetimes, replay.run)};
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
  // With those that BatchPrefetcher loads meanwhile.
  const int64_t batches = device.is_cuda() ? 3 : 1;
  Requests requests = PlanBuffers(program, batches, step.micro_batches, layout,
                                  device, &report);
  requests.graph = step.graph;
  const std::set<StepStream> streams = StreamsWithProducts(
      step.train, static_cast<int>(step.train.runs.size()) - 1);
  requests.products.streams = std::ssize(streams);
  if (step.graph && streams.contains(StepStream::kUpdate)) {
    // TrainStep::Flush()
    requests.between_passes.push_back(requests.products.bytes);
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
  Requests requests = PlanBuffers(*schedule.program, /*batches=*/1,
                                  /*micro_batches=*/1, layout, device, &report);
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  requests.buffers.push_back(more_bytes);
  report.other += more_bytes;
  const Pass forward = {schedule, lifetimes};
  requests.passes = {&forward, &forward};
  return PlanPasses(std::move(requests), lifetimes.arena_bytes, device, report);
}

}  // namespace tessera
