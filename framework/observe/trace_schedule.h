#ifndef FRAMEWORK_OBSERVE_TRACE_SCHEDULE_H_
#define FRAMEWORK_OBSERVE_TRACE_SCHEDULE_H_

#include <cstdint>

namespace tessera {

// Which steps of a process are traced: `wait` steps without, `warmup` steps
// with the recorder on, whose records are dropped, and `active` steps that are
// kept; that `repeat` times, or without end if `repeat` is 0. The rules of
// torch.profiler.schedule().
struct TraceSchedule {
  int64_t wait = 0, warmup = 0, active = 1, repeat = 1;

  enum class Action { kOff, kWarmUp, kRecord };
  // Of step n = 0, 1, ... of the process.
  Action ActionOf(int64_t n) const {
    const int64_t cycle = wait + warmup + active;
    if (repeat > 0 && n >= repeat * cycle) return Action::kOff;
    const int64_t place = n % cycle;
    if (place < wait) return Action::kOff;
    return place < wait + warmup ? Action::kWarmUp : Action::kRecord;
  }
  // Whether step n is the last of its `active` steps.
  bool EndsWindow(int64_t n) const {
    return ActionOf(n) == Action::kRecord &&
           n % (wait + warmup + active) == wait + warmup + active - 1;
  }
};

// The step of a process whose kernels are counted if
// observe.trace.kernel_counters asks for it, 1 being the first. The first loads
// kernels and times products; from the third on a CUDA graph may launch the
// step, and hides the kernels from counters (TrainStep::Launch()).
// TraceSchedule::wait must be at least this.
inline constexpr int64_t kCountedStep = 2;

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_SCHEDULE_H_
