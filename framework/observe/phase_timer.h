#ifndef FRAMEWORK_OBSERVE_PHASE_TIMER_H_
#define FRAMEWORK_OBSERVE_PHASE_TIMER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "c10/core/Event.h"
#include "framework/base/monotonic_clock.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/observe/instrument.h"
#include "framework/observe/step_record.h"

namespace tessera {

struct PhaseTimerOptions {
  c10::Device device = c10::kCPU;
  // Every n-th step, counted from step n, is timed with all phases inside
  // forward and backward, the other steps without. 0: none is.
  int64_t detail_every_steps = 0;
  std::function<absl::Time()> clock = MonotonicNow;  // without a GPU
};

// Times phases on the device: with events on the current stream, read when
// asked for, so that the host never waits; with the host's clock without a GPU.
// Ops are not timed: the trace does that. Of phases inside a CUDA graph, the
// last launch counts; all of them are timed if detail_every_steps is set.
//
// After an error of the device it times nothing more; AddTo() returns the
// error.
class PhaseTimer : public Instrument, public PhaseObserver {
 public:
  explicit PhaseTimer(const PhaseTimerOptions& options);

  PhaseObserver* phases() override { return this; }
  // StepRecord::phases; waits for the last phase to end on the device.
  absl::Status AddTo(StepRecord* record) override;

  void BeginStep(int64_t step) noexcept override;
  void EndStep() noexcept override;
  void Begin(absl::string_view segment) noexcept override;
  void End() noexcept override;

  // The phases since the last call, but not the first step, which compiles and
  // takes memory, if another one followed; in the order in which they first
  // began; a phase that contains others stands before them. Throws LibTorch's
  // exceptions.
  std::vector<PhaseTime> Take();

 private:
  // Does `work` unless an earlier one has failed; keeps its error.
  void Try(absl::FunctionRef<void()> work) noexcept;
  void BeginPhase(absl::string_view segment);
  void EndPhase();
  // A phase, by its place in the tree of phases.
  struct Node {
    std::string path;
    std::string segment;
    int parent = -1;
    std::vector<int> children;
    double total_ms = 0;
    int64_t count = 0;      // steps, or occurrences outside of steps
    int64_t last_step = 0;  // that was counted since Take()
  };
  struct Moment {
    std::unique_ptr<c10::Event> event;  // null without a GPU
    absl::Time time;
  };
  struct Sample {
    int node = 0;
    Moment begin, end;
    bool ended = false;
  };
  // A phase of a CUDA graph.
  struct RecordedSample {
    int node = 0;
    std::shared_ptr<const GraphMoment> begin, end;
  };

  // Forgets what has been timed.
  void Drop();
  void Record(int node);
  std::shared_ptr<const GraphMoment> RecordNow();
  // Adds the phases of the last launch.
  void ResolveRecorded();
  int ChildOf(int parent, absl::string_view segment);
  Moment Now();
  // Adds the samples that have ended to their nodes, up to the first that is
  // still at work on the device; with `wait`, all.
  void Resolve(bool wait);
  void List(int node, std::vector<PhaseTime>* times) const;

  const PhaseTimerOptions options_;
  absl::Status status_;      // the first error
  std::vector<Node> nodes_;  // [0] is the root
  int open_ = 0;             // the innermost open phase
  int untimed_depth_ = 0;    // open phases inside an untimed one
  int64_t step_ = 0;         // 0 outside of steps
  bool detailed_ = false;
  std::deque<Sample> samples_;
  int64_t first_sample_ = 0;   // number of samples_.front()
  int64_t first_counted_ = 0;  // number of the first that Drop() left
  std::vector<int64_t> open_samples_;
  std::vector<std::unique_ptr<c10::Event>> idle_events_;
  std::vector<RecordedSample> recorded_;
  std::shared_ptr<const GraphMoment> last_moment_;  // of recorded_
  std::vector<size_t> open_recorded_;
  int64_t steps_ = 0;  // that began
  bool taken_ = false;
  int64_t recorded_step_ = -1;
  int64_t last_step_ = -1;  // that began
  bool launched_ = false;   // since ResolveRecorded()
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_PHASE_TIMER_H_
