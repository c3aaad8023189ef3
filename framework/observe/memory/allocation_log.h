#ifndef FRAMEWORK_OBSERVE_MEMORY_ALLOCATION_LOG_H_
#define FRAMEWORK_OBSERVE_MEMORY_ALLOCATION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/phase_observer.h"
#include "framework/observe/memory_record.h"

namespace tessera {

// Follows allocations and the phases and ops in which they happen, and reports
// the last step. Knows nothing of an allocator or a device; not thread-safe.
class AllocationLog : public PhaseObserver {
 public:
  explicit AllocationLog(std::function<absl::Time()> clock = MonotonicNow)
      : clock_(std::move(clock)) {}

  // `bytes`: as asked for, before the allocator rounds up.
  void Allocate(uint64_t address, int64_t bytes);
  void Free(uint64_t address);
  bool IsAllocated(uint64_t address) const { return live_.contains(address); }
  // What the allocator itself counts now. Figures in between are extrapolated
  // from the allocations, so this should be called where phases and ops begin
  // and end.
  void Sample(int64_t allocated, int64_t reserved);
  // The allocation that contains `address` holds `category`, whatever made it.
  void Own(MemoryCategory category, uint64_t address);

  void BeginStep(int64_t step) noexcept override;
  void EndStep() noexcept override { in_step_ = false; }
  void Begin(absl::string_view segment) noexcept override;
  void End() noexcept override;
  void BeginOp(absl::string_view name, OpResults results) noexcept override;
  void EndOp() noexcept override;

  // Bytes of what is allocated now, as asked for.
  int64_t allocated() const { return allocated_; }

  struct ReportOptions {
    bool with_timeline = false;
    size_t most_largest = 10;  // elements of MemoryRecord::largest
  };
  // The last step, after EndStep().
  MemoryRecord Report(const ReportOptions& options) const;

 private:
  // A phase or op, by its place in the tree of phases.
  struct Node {
    std::string name;
    bool is_op = false;
    OpResults results = OpResults::kOther;
    int parent = -1;
    std::vector<int> children;
  };
  // Events of a step are numbered. What exists before it was born at
  // kBeforeStep, what outlives it dies at kAfterStep.
  static constexpr int kBeforeStep = -1;
  static constexpr int kAfterStep = std::numeric_limits<int>::max();
  struct Moment {
    int event = 0;
    int node = 0;        // the innermost phase or op
    int64_t op_run = 0;  // the run of an op that was open; 0: none
    absl::Time time;
  };
  struct Allocation {
    uint64_t address = 0;
    int64_t bytes = 0;
    Moment born, died;
  };
  struct Event {
    enum class Kind { kAllocate, kFree, kSample, kBeginPhase, kEndPhase };
    Kind kind = Kind::kSample;
    int index = 0;  // the allocation's; the node of the phase
    int64_t allocated = 0, reserved = 0;  // kSample
  };
  struct Owner {
    MemoryCategory category = MemoryCategory::kOther;
    uint64_t address = 0;
  };
  // The allocator's count after an event, as far as it is known.
  struct Count {
    int64_t allocated = 0, reserved = 0;
  };

  void Enter(absl::string_view name, bool is_op, OpResults results);
  Moment Now(int event) const;
  std::string PathOf(int node) const;
  // From the outermost phase to `node`.
  std::vector<int> Chain(int node) const;
  MemoryCategory Classify(const Allocation& allocation) const;
  std::vector<Count> Replay() const;
  MemoryBreakdown BreakDown(int event, const Count& count) const;
  std::vector<PhaseMemory> Phases(const std::vector<Count>& counts) const;
  std::vector<LargeAllocation> Largest(size_t most) const;
  MemoryTimeline Timeline() const;

  const std::function<absl::Time()> clock_;
  std::vector<Node> nodes_{{}};  // [0] is outside of phases
  int open_ = 0;                 // the innermost open phase or op
  int64_t op_runs_ = 0, open_op_run_ = 0;
  bool in_step_ = false;
  int64_t step_ = 0;
  absl::Time step_begin_;
  Event last_sample_;
  std::vector<Allocation> allocations_;
  std::map<uint64_t, int> live_;  // by address: index of the allocation
  int64_t allocated_ = 0;         // bytes of live_
  std::vector<Event> events_;     // of the step
  std::vector<Owner> owners_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_ALLOCATION_LOG_H_
