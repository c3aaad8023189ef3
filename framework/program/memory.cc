#include "framework/program/memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

int64_t RoundToBlock(int64_t bytes) { return (bytes + 511) / 512 * 512; }

int64_t OpWorkspace(const Schedule& schedule, const OpRun& run) {
  if (run.kind == OpRun::Kind::kAdd) return 0;
  const Op& op = *schedule.program->ops()[run.op].op;
  return run.kind == OpRun::Kind::kForward
             ? op.ForwardWorkspaceBytes()
             : op.BackwardWorkspaceBytes(run.wanted());
}

bool LiesApart(const Buffer& buffer) {
  return buffer.storage != Storage::kGradients;
}

// The value that the buffer holds between the forward and the backward pass; -1
// if the buffer is not alive then.
int KeptValue(const Schedule& schedule, const Lifetimes& lifetimes,
              const Buffer& buffer) {
  if (!lifetimes.IsKept(schedule, buffer)) return -1;
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
    if (!LiesApart(buffer) || buffer.storage == Storage::kArena) continue;
    const Role role = schedule.values[buffer.values.front()].role;
    std::vector<int64_t>& changes =
        role == Role::kGradient ? gradients : activations;
    const int64_t bytes = RoundToBlock(buffer.bytes);
    changes[buffer.first] += bytes;
    changes[std::min(buffer.last, runs - 1) + 1] -= bytes;
  }
  int64_t live_activations = 0, live_gradients = 0;
  for (int run = 0; run < runs; ++run) {
    live_activations += activations[run];
    live_gradients += gradients[run];
    moments[run] = {
        .run = run,
        .activations = lifetimes.arena_bytes + live_activations,
        .gradients = live_gradients,
        .workspace = RoundToBlock(OpWorkspace(schedule, schedule.runs[run]))};
  }
  return moments;
}

std::optional<int> ReplayAllocations(const Schedule& schedule,
                                     const Lifetimes& lifetimes,
                                     CachingAllocator* allocator) {
  const std::vector<Buffer>& buffers = lifetimes.buffers;
  std::vector<int64_t> addresses(buffers.size(), -1);
  std::vector<std::vector<size_t>> ending(schedule.runs.size());
  int peak = 0;
  int64_t most = 0;
  size_t next = 0;  // buffers are ordered by first run
  for (size_t run = 0; run < schedule.runs.size(); ++run) {
    for (;
         next < buffers.size() && buffers[next].first == static_cast<int>(run);
         ++next) {
      const Buffer& buffer = buffers[next];
      const bool allocates = buffer.storage == Storage::kAllocator ||
                             buffer.storage == Storage::kOp;
      if (!allocates || buffer.bytes == 0) continue;
      const std::optional<int64_t> address = allocator->Allocate(buffer.bytes);
      if (!address.has_value()) return std::nullopt;
      addresses[next] = *address;
      ending[std::min<size_t>(buffer.last, ending.size() - 1)].push_back(next);
    }
    const int64_t workspace = OpWorkspace(schedule, schedule.runs[run]);
    std::optional<int64_t> scratch;
    if (workspace > 0) {
      scratch = allocator->Allocate(workspace);
      if (!scratch.has_value()) return std::nullopt;
    }
    if (allocator->allocated() > most) {
      most = allocator->allocated();
      peak = static_cast<int>(run);
    }
    if (scratch.has_value()) allocator->Free(*scratch);
    for (const size_t b : ending[run]) allocator->Free(addresses[b]);
  }
  return peak;
}

std::map<std::string, LiveBytes> LiveBytesByKind(const Schedule& schedule,
                                                 const Lifetimes& lifetimes,
                                                 int run) {
  std::map<std::string, LiveBytes> live;
  const auto count = [&](int value, const OpRun& writer) {
    const Buffer& buffer = lifetimes.buffers[lifetimes.buffer_of[value]];
    if (!LiesApart(buffer) || buffer.values.front() != value ||
        run < buffer.first || run > buffer.last) {
      return;
    }
    LiveBytes& bytes =
        live[std::string(schedule.program->ops()[writer.op].op->kind())];
    const bool gradient = schedule.values[value].role == Role::kGradient;
    (gradient ? bytes.gradients : bytes.activations) +=
        RoundToBlock(buffer.bytes);
  };
  for (const OpRun& writer : schedule.runs) {
    if (writer.kind != OpRun::Kind::kBackward) {
      for (const int value : writer.results) count(value, writer);
    }
    for (const GradientWrite& write : writer.d_operands) {
      if (write.value >= 0) count(write.value, writer);
    }
  }
  return live;
}

std::string DescribeRun(const Schedule& schedule, int run) {
  const OpRun& r = schedule.runs[run];
  const std::string& name = schedule.program->ops()[r.op].name;
  if (r.kind == OpRun::Kind::kAdd) {
    return absl::StrCat("the sum of gradients after ", name);
  }
  return absl::StrCat("the ", r.is_backward() ? "backward" : "forward", " of ",
                      name,
                      r.phase == Phase::kRecompute ? " (recomputed)" : "");
}

int64_t KeptBytes(const Schedule& schedule, const Lifetimes& lifetimes) {
  int64_t bytes = 0;
  for (const Buffer& buffer : lifetimes.buffers) {
    if (KeptValue(schedule, lifetimes, buffer) >= 0) bytes += buffer.bytes;
  }
  return bytes;
}

std::map<std::string, int64_t> KeptBytesByKind(const Schedule& schedule,
                                               const Lifetimes& lifetimes) {
  std::map<std::string, int64_t> by_kind;
  for (int run = 0; run < schedule.first_backward; ++run) {
    const OpNode& node = schedule.program->ops()[schedule.runs[run].op];
    by_kind[std::string(node.op->kind())] +=
        KeptBytesOf(schedule, lifetimes, run);
  }
  return by_kind;
}

int64_t KeptBytesOf(const Schedule& schedule, const Lifetimes& lifetimes,
                    int run) {
  const OpRun& r = schedule.runs[run];
  if (r.kind != OpRun::Kind::kForward || r.phase != Phase::kForward) return 0;
  int64_t bytes = 0;
  for (const int value : r.results) {
    const Buffer& buffer = lifetimes.buffers[lifetimes.buffer_of[value]];
    if (KeptValue(schedule, lifetimes, buffer) == value) bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace tessera
