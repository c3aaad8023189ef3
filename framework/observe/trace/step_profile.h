#ifndef FRAMEWORK_OBSERVE_TRACE_STEP_PROFILE_H_
#define FRAMEWORK_OBSERVE_TRACE_STEP_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "framework/observe/trace/kernel_name.h"
#include "framework/observe/trace/trace.h"
#include "framework/program/printer.h"

namespace tessera {

// Times are sums of the durations of activities (kernels, copies, fills) over
// all traced steps, in nanoseconds, so that parts add up to the total exactly.
struct TimeTotal {
  std::string name;
  int64_t ns = 0;
  int64_t activities = 0;
};

struct KernelTime {
  // ReadableKernelName(), or FullKernelName() where two kernels share that.
  std::string name;
  std::string symbol;
  KernelClass kernel_class = KernelClass::kOther;  // of most of its time
  // The phase and kind of op that it ran in for most of its time: "backward
  // swiglu", "optimizer adamw"; "prepare" outside of ops.
  std::string op;
  int64_t ns = 0;
  int64_t instances = 0;
  // Work of one step, if every op that runs the kernel says what the kernel
  // does in it:
  //   all of the op      it is the op's one kernel, or nearly (kNearlyAll)
  //   products only      one of the kernels that compute the op's products,
  //                      which are equally large; `bytes` is then not known: 0
  std::optional<Cost> cost;
  std::optional<KernelCounters> counters;  // AddCounters()
};

// An op in one phase, or what a phase issues outside of ops (empty `name`).
struct OpTime {
  std::string phase, group, name, kind;  // as in StepRow
  int64_t ns = 0;
  int64_t activities = 0;
  // Work of one step; absent for what the program's rows do not list.
  std::optional<Cost> cost;
  std::optional<double> roofline_seconds;
};

// A kernel does the work of its op if it takes this share of the op's time.
inline constexpr double kNearlyAll = 0.95;

// Attention ops of one phase. Backends that fuse softmax and products have only
// `other_ns`, as do backward passes.
struct AttentionTime {
  std::string phase;
  int64_t scores_ns = 0;   // Q K^T
  int64_t softmax_ns = 0;  // with scale and mask
  int64_t values_ns = 0;   // P V
  int64_t other_ns = 0;
};

// Where the time of the traced steps went. Covers the activities that steps
// issued and those that no range of the trace issued (of other threads), not
// those of evaluations and checkpoints.
struct StepProfile {
  int64_t steps = 0;
  // The sum of the steps' wall times. A step takes from its begin on the host,
  // or from the end of earlier work on the device if that is later, to its end
  // on the host or the device, whichever is later.
  int64_t wall_ns = 0;
  int64_t busy_ns = 0;   // in which at least one activity ran
  int64_t total_ns = 0;  // more than `busy_ns` if activities overlap
  int64_t activities = 0;
  int64_t dropped = 0;  // Trace::dropped: what this profile does not know of
  DeviceRates rates;    // the device's peaks
  // The step whose kernels were counted; 0: none, because of `not_counted` or,
  // if that is empty, because nobody asked.
  int64_t counted_step = 0;
  std::string not_counted;

  std::vector<KernelTime> kernels;  // longest first
  // Each adds up to `total_ns`.
  std::vector<TimeTotal> classes;  // in the order of KernelClass
  std::vector<TimeTotal> phases;   // in the order of their first activity
  std::vector<TimeTotal> blocks;   // "block_0" ..., "outside"
  std::vector<OpTime> ops;         // in the order of the rows
  std::vector<AttentionTime> attention;

  double MsPerStep(int64_t ns) const;
  double Share(int64_t ns) const;  // of total_ns
  int64_t ClassNs(KernelClass kernel_class) const;
};

// `rows`: unfolded (StepRows()). An op without rows has no kind, so its
// activities are classed by phase and name.
StepProfile BuildStepProfile(const Trace& trace, absl::Span<const StepRow> rows,
                             const DeviceRates& rates = {});

// Gives each kernel of `profile` the counters that it has in `counted`, the
// profile of a counted step (CuptiKernelCounters()).
void AddCounters(const StepProfile& counted, StepProfile* profile);

// FLOPs per byte that the kernel read from DRAM or wrote to it. Absent if its
// work is not known, or the bytes were not counted.
std::optional<double> FlopPerDramByte(const KernelTime& kernel,
                                      const StepProfile& profile);

// What an op or kernel reached. Absent: it took no time, or its work is not
// known.
struct Speed {
  std::optional<double> tflop_per_s;
  // 1e9 bytes that must move (Cost), not that moved.
  std::optional<double> gb_per_s;
  // The time that the roofline allows over the time it took; at most 1 unless
  // operands were still in a cache. Absent if a peak is not known. For a kernel
  // whose bytes are not known, of the FLOP/s only.
  std::optional<double> roofline_share;
};
Speed SpeedOf(const OpTime& op, int64_t steps);
Speed SpeedOf(const KernelTime& kernel, const StepProfile& profile);

// softmax / (scores + values); absent where they were not measured.
std::optional<double> SoftmaxToProducts(const AttentionTime& attention);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_STEP_PROFILE_H_
