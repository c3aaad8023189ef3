#include "framework/program/memory.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "framework/base/round_up.h"

namespace tessera {
namespace {

// LibTorch's allocator hands out multiples of this.
constexpr int64_t kBlock = 512;

int64_t OpWorkspace(const Schedule& schedule, const StepRun& run) {
  if (run.op < 0 || run.kind == StepRun::Kind::kAdd) return 0;
  const Op& op = *schedule.program->ops()[run.op].op;
  return run.kind == StepRun::Kind::kForward
             ? op.ForwardWorkspaceBytes()
             : op.BackwardWorkspaceBytes(run.wanted());
}

bool HasProducts(const Schedule& schedule, size_t run) {
  return schedule.CostOf(schedule.runs[run]).product_flops > 0;
}

// The value that the buffer holds between the forward and the backward pass; -1
// if the buffer is not alive then.
int KeptValue(const Schedule& schedule, const Buffer& buffer) {
  if (!IsKept(schedule, buffer)) return -1;
  int kept = -1;
  for (const int value : buffer.values) {
    if (schedule.values[value].role == Role::kActivation) kept = value;
  }
  return kept;
}

}  // namespace

std::vector<MemoryMoment> MemoryOverTime(const Schedule& schedule,
                                         const Lifetimes& lifetimes) {
  const int runs = static_cast<int>(schedule.runs.size());
  std::vector<MemoryMoment> moments(runs);
  // The changes of the live bytes, then their prefix sums.
  std::vector<int64_t> activations(runs + 1), gradients(runs + 1);
  for (const Buffer& buffer : lifetimes.buffers) {
    if (buffer.storage == Storage::kGradients ||
        buffer.storage == Storage::kArena) {
      continue;
    }
    const Role role = schedule.values[buffer.values.front()].role;
    std::vector<int64_t>& changes =
        role == Role::kGradient ? gradients : activations;
    const int64_t bytes = RoundUp(buffer.bytes, kBlock);
    changes[buffer.first] += bytes;
    changes[std::min(buffer.last, runs - 1) + 1] -= bytes;
  }
  int64_t live_activations = 0, live_gradients = 0;
  for (int run = 0; run < runs; ++run) {
    live_activations += activations[run];
    live_gradients += gradients[run];
    moments[run] = {.run = run,
                    .activations = lifetimes.arena_bytes + live_activations,
                    .gradients = live_gradients,
                    .workspace = RoundUp(
                        OpWorkspace(schedule, schedule.runs[run]), kBlock)};
  }
  return moments;
}

std::set<StepStream> StreamsWithProducts(const Schedule& schedule, int run) {
  std::set<StepStream> streams;
  for (int i = 0; i <= run; ++i) {
    if (HasProducts(schedule, i)) streams.insert(schedule.runs[i].stream);
  }
  return streams;
}

std::optional<AllocatedPeak> ReplayAllocations(
    const Schedule& schedule, const Lifetimes& lifetimes,
    CachingAllocator* allocator, const ProductWorkspaces& workspaces) {
  const std::vector<Buffer>& buffers = lifetimes.buffers;
  const size_t runs = schedule.runs.size();
  std::vector<std::vector<int64_t>> ending(runs);  // addresses
  const auto allocate = [&](int64_t bytes, size_t last) {
    if (bytes == 0) return true;
    const std::optional<int64_t> address = allocator->Allocate(bytes);
    if (!address.has_value()) return false;
    ending[std::min(last, runs - 1)].push_back(*address);
    return true;
  };
  AllocatedPeak peak;
  size_t next = 0;  // buffers of the allocator are ordered by first run
  std::set<StepStream> begun;
  for (size_t run = 0; run < runs; ++run) {
    for (;
         next < buffers.size() && buffers[next].first <= static_cast<int>(run);
         ++next) {
      const Buffer& buffer = buffers[next];
      const bool allocates = buffer.storage == Storage::kAllocator ||
                             buffer.storage == Storage::kOp;
      if (allocates && !allocate(buffer.bytes, buffer.last)) {
        return std::nullopt;
      }
    }
    if (!allocate(OpWorkspace(schedule, schedule.runs[run]), run)) {
      return std::nullopt;
    }
    if (HasProducts(schedule, run)) begun.insert(schedule.runs[run].stream);
    const int64_t without =
        std::max<int64_t>(0, workspaces.streams - std::ssize(begun));
    const int64_t allocated =
        allocator->allocated() - without * workspaces.bytes;
    if (allocated > peak.allocated) {
      peak = {.run = static_cast<int>(run), .allocated = allocated};
    }
    for (const int64_t address : ending[run]) allocator->Free(address);
  }
  return peak;
}

std::map<std::string, LiveBytes> LiveBytesByKind(const Schedule& schedule,
                                                 const Lifetimes& lifetimes,
                                                 int run) {
  std::map<std::string, LiveBytes> live;
  const auto count = [&](int value, const StepRun& writer) {
    const Buffer& buffer = lifetimes.buffers[lifetimes.buffer_of[value]];
    if (buffer.storage == Storage::kGradients || buffer.joint ||
        buffer.values.front() != value || run < buffer.first ||
        run > buffer.last) {
      return;
    }
    LiveBytes& bytes =
        live[std::string(schedule.program->ops()[writer.op].op->kind())];
    const bool gradient = schedule.values[value].role == Role::kGradient;
    (gradient ? bytes.gradients : bytes.activations) +=
        RoundUp(buffer.bytes, kBlock);
  };
  for (const StepRun& writer : schedule.runs) {
    if (writer.op < 0) continue;
    for (const Access& access : AccessesOf(schedule, writer)) {
      if (access.writes && access.value >= 0) count(access.value, writer);
    }
  }
  return live;
}

std::string DescribeRun(const Schedule& schedule, int run) {
  const StepRun& r = schedule.runs[run];
  if (r.op < 0) return absl::StrCat("the ", schedule.NameOf(r));
  const std::string& name = schedule.program->ops()[r.op].name;
  if (r.kind == StepRun::Kind::kAdd) {
    return absl::StrCat("the sum of gradients after ", name);
  }
  return absl::StrCat("the ", r.is_backward() ? "backward" : "forward", " of ",
                      name,
                      r.phase == Phase::kRecompute ? " (recomputed)" : "");
}

int64_t KeptBytes(const Schedule& schedule, const Lifetimes& lifetimes) {
  int64_t bytes = 0;
  for (const Buffer& buffer : lifetimes.buffers) {
    const bool first = schedule.runs[buffer.first].micro_batch == 0;
    if (first && KeptValue(schedule, buffer) >= 0) bytes += buffer.bytes;
  }
  return bytes;
}

int64_t KeptBytesOf(const Schedule& schedule, const Lifetimes& lifetimes,
                    int run) {
  const StepRun& r = schedule.runs[run];
  if (r.kind != StepRun::Kind::kForward || r.phase != Phase::kForward) return 0;
  int64_t bytes = 0;
  for (const int value : r.results) {
    const Buffer& buffer = lifetimes.buffers[lifetimes.buffer_of[value]];
    if (KeptValue(schedule, buffer) == value) bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace tessera
