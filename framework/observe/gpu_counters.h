#ifndef FRAMEWORK_OBSERVE_GPU_COUNTERS_H_
#define FRAMEWORK_OBSERVE_GPU_COUNTERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/task_thread.h"
#include "framework/observe/gpu_sensors.h"
#include "framework/observe/instrument.h"
#include "framework/observe/run_description.h"
#include "framework/observe/step_record.h"

namespace tessera {

struct GpuCounterOptions {
  // SM clock at which the peak of StepRecord::mfu holds; absent: the GPU's
  // highest.
  std::optional<double> peak_mhz;
  int world_size = 1;  // ranks that share StepRecord::tokens_per_s
  // False: each call reads the sensors itself, for tests with their own clock.
  bool use_thread = true;
  // Also called on the reader's thread.
  std::function<absl::Time()> clock = MonotonicNow;
};

// Adds StepRecord::gpu: what a GPU's sensors say about the training steps.
//
// A thread of the reader reads the sensors, because that is slow: on an H200,
// the figures of one record take 18 ms, in which the GPU would run out of work.
// The thread that trains only posts requests and takes finished figures:
//
// - Clocks, temperature and throttle reasons are read about ten times a second
//   while the GPU works on steps.
// - Power, energy and utilization are means over intervals in which the GPU did
//   nothing but steps. A step's end ends an interval of at least a second and
//   begins the next. A phase outside of steps (evaluation, checkpoint) ends an
//   interval early, which counts if it took at least 110 ms: sensors refresh
//   every 100 ms at most. An interval that includes more than 20 ms of anything
//   else is dropped.
// - A record has what was completed since the record before. Only the last
//   record of a run ends the open interval and waits for its figures, at most a
//   second.
//
// The first step of a process, which is slower, counts only if there is no
// other. What the GPU does not report is absent.
class GpuCounterReader : public Instrument, public PhaseObserver {
 public:
  GpuCounterReader(std::unique_ptr<GpuSensors> sensors,
                   GpuCounterOptions options);

  // What this GPU does not report and why, for the user: "no power and energy
  // (Not Supported)". Empty if it reports everything.
  const std::string& missing() const { return missing_; }

  // Ends the open interval and waits at most a second for the figures up to
  // now. For work that is not a run: there, the last AddTo() does it. The
  // device is idle.
  void Finish();

  absl::Status OnTrainStart(const RunDescription& run) override;
  PhaseObserver* phases() override { return this; }
  absl::Status AddTo(StepRecord* record) override;

  void BeginStep(int64_t step) noexcept override;
  void EndStep() noexcept override;
  void Begin(absl::string_view segment) noexcept override;
  void End() noexcept override {}

 private:
  struct Interval {
    absl::Time begin;
    absl::StatusOr<double> joules;  // when it began
    bool has_utilization = false;
  };
  // Sums over the intervals since the last record that took them.
  struct Totals {
    absl::Duration energy_time, utilization_time;
    double joules = 0;
    // Percent times seconds.
    GpuUtilization utilization;
  };
  // Readings since the last record.
  struct Readings {
    int count = 0;
    double sm_mhz = 0;  // sum
    std::optional<double> memory_mhz, celsius;
    std::set<std::string> throttle_reasons;
  };

  // Runs `request` after those before it, on the thread if there is one.
  void Post(std::function<void()> request);
  // Waits for all requests; false if they take longer.
  bool WaitForRequests(absl::Duration timeout);
  void PostRead(absl::Time now);
  void PostClose(absl::Time now);

  // Requests.
  void Read();
  void Open();
  // Adds the interval up to now to totals_ and begins the next one with the
  // same readings. False if it must be dropped: it is too short, or its last
  // step ended too long ago, at `steps_end`.
  bool Close(absl::Time steps_end);

  void AddTotals(const Totals& totals, const StepRecord& record,
                 GpuCounters* counters) const;
  void AddReadings(const Readings& readings, const StepRecord& record,
                   GpuCounters* counters) const;

  const std::unique_ptr<GpuSensors> sensors_;
  const GpuCounterOptions options_;
  std::string missing_;
  std::optional<double> max_sm_mhz_;

  // Used by the thread that trains.
  std::optional<int64_t> last_step_;  // of the run
  bool in_step_ = false;
  int64_t steps_ = 0;  // of this process
  std::optional<absl::Time> open_since_;
  // Since the last record, until the next step.
  absl::Time idle_since_ = absl::InfiniteFuture();
  absl::Time read_at_ = absl::InfinitePast();

  Interval interval_;  // used by the requests

  absl::Mutex mutex_;
  Totals totals_ ABSL_GUARDED_BY(mutex_);
  Readings readings_ ABSL_GUARDED_BY(mutex_);

  // Ends first: requests use the other members.
  std::optional<TaskThread> thread_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_GPU_COUNTERS_H_
