#ifndef FRAMEWORK_OBSERVE_TRACE_TRACE_H_
#define FRAMEWORK_OBSERVE_TRACE_TRACE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// One kernel, copy or fill on a GPU. Times of a trace are nanoseconds of one
// clock, the host's and the device's alike.
struct DeviceActivity {
  enum class Kind { kKernel, kCopy, kFill };
  Kind kind = Kind::kKernel;
  int name = 0;  // Trace::names: the kernel's demangled symbol, "copy H2D"
  int64_t begin_ns = 0, end_ns = 0;
  int device = 0;
  int64_t stream = 0;
  uint32_t correlation = 0;  // HostCall::correlation of the call that issued it
  uint64_t graph_node = 0;   // 0: issued outside of a CUDA graph
  int64_t bytes = 0;         // of copies and fills
  // Of kernels.
  std::array<int, 3> grid{}, block{};
  int registers = 0;  // per thread
  int64_t shared_bytes = 0;
  // The innermost range in which the host issued it; -1: in none.
  int range = -1;
};

// A call of the CUDA runtime or driver.
struct HostCall {
  int name = 0;  // Trace::names: "cudaLaunchKernel"
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t thread = 0;
  uint32_t correlation = 0;
  // The innermost range in which it began; -1: in none, or of another thread.
  int range = -1;
};

// The time in which the host issued a step, phase or op (phase_observer.h).
struct HostRange {
  enum class Level { kStep, kPhase, kOp };
  Level level = Level::kPhase;
  int name = 0;     // Trace::names: "step_7", "forward", "qkv"
  int parent = -1;  // the range around it; parents stand before their children
  int64_t begin_ns = 0, end_ns = 0;
  // A part of a CUDA graph: the host issued it long before, and both times are
  // those of the launch.
  bool in_graph = false;
};

// What the hardware counted while a kernel ran, summed over launches. Absent:
// the GPU does not have the counter.
struct KernelCounters {
  int64_t launches = 0;
  double ns = 0;  // the time of the launches while they were counted
  // The sum of each launch's time, multiplied by the share of their peak at
  // which the tensor pipes worked.
  std::optional<double> tensor_ns;
  std::optional<double> dram_bytes;           // read and written
  std::optional<double> l2_hits, l2_lookups;  // requests to L2

  KernelCounters& operator+=(const KernelCounters& other);

  // Means over the launches; shares are of 1. Also absent after no time or
  // without requests.
  std::optional<double> tensor_share() const;
  std::optional<double> dram_bytes_per_launch() const;
  std::optional<double> l2_hit_share() const;
};

// What a process did on the host and on its GPU, from the start of one step to
// the end of another.
struct Trace {
  std::vector<std::string> names;  // each once
  // Of the thread that trains; by begin_ns, then those in graphs.
  std::vector<HostRange> ranges;
  std::vector<HostCall> calls;
  std::vector<DeviceActivity> activities;
  uint32_t thread = 0;  // that trains
  int rank = 0, world_size = 1;
  std::string device;  // "NVIDIA H200"
  // Activities and calls that were not kept: the trace's limit, or CUPTI's.
  int64_t dropped = 0;
  // What was counted for each kernel, by DeviceActivity::correlation; only
  // CuptiKernelCounters() fills it.
  std::unordered_map<uint32_t, KernelCounters> counters;

  absl::string_view name(int index) const { return names[index]; }

  // "forward/block_3/attention/qkv", without the step; empty for a step and
  // for -1.
  std::string PathOf(int range) const;
};

// An activity and the call that issued it, which may be missing.
struct IssuedActivity {
  const DeviceActivity* activity = nullptr;
  const HostCall* call = nullptr;
};
// Of all activities, in their order. They point to `trace`.
std::vector<IssuedActivity> IssuedActivities(const Trace& trace);

// The calling thread's id in the kernel, as HostCall::thread.
uint32_t CurrentThreadId();

// Sets HostCall::range and, from the call that issued it,
// DeviceActivity::range, and puts activities and calls in order of their begin.
void AttributeToRanges(Trace* trace);

// Numbers names.
class NameTable {
 public:
  explicit NameTable(std::vector<std::string>* names) : names_(names) {}
  int IndexOf(absl::string_view name);

 private:
  std::vector<std::string>* const names_;
  std::map<std::string, int, std::less<>> index_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_TRACE_H_
