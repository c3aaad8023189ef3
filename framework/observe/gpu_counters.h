#ifndef FRAMEWORK_OBSERVE_GPU_COUNTERS_H_
#define FRAMEWORK_OBSERVE_GPU_COUNTERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/observe/gpu_sensors.h"
#include "framework/observe/instrument.h"
#include "framework/observe/step_record.h"

namespace tessera {

struct GpuCounterOptions {
  // SM clock at which the peak of StepRecord::mfu holds; absent: the GPU's
  // highest.
  std::optional<double> peak_mhz;
  int world_size = 1;  // ranks that share StepRecord::tokens_per_s
  std::function<absl::Time()> clock = absl::Now;
};

// Adds StepRecord::gpu: what a GPU's sensors say of the steps since the record
// before. Clocks, temperature and throttle reasons are read about ten times a
// second when the host has issued a step, which the device is still at work on,
// and for the record, right after the device's work. Energy and utilization
// cover the whole interval. What happens between steps (evaluation,
// checkpoints) does not count.
//
// Sensors refresh every 100 ms at most. If records follow each other faster,
// energy and utilization go into the first record at least 100 ms after the
// last one that had them, and cover all steps in between. What the GPU does not
// report is absent.
class GpuCounterReader : public Instrument, public PhaseObserver {
 public:
  GpuCounterReader(std::unique_ptr<GpuSensors> sensors,
                   GpuCounterOptions options);

  // What this GPU does not report and why, for the user: "no power and energy
  // (Not Supported)". Empty if it reports everything.
  const std::string& missing() const { return missing_; }

  PhaseObserver* phases() override { return this; }
  absl::Status AddTo(StepRecord* record) override;

  void BeginStep(int64_t step) override;
  void EndStep() override;
  void Begin(absl::string_view segment) override;
  void End() override {}

 private:
  // A time in which the GPU did nothing but steps.
  struct Interval {
    absl::Time begin;
    std::optional<double> begin_joules;
    bool has_utilization = false;
  };
  // Sums over the intervals since the last record that took them.
  struct Totals {
    int64_t steps = 0;
    absl::Duration time, energy_time, utilization_time;
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

  void OpenInterval();
  void CloseInterval();
  void Read();
  // Moves totals_ into `counters`.
  void TakeTotals(const StepRecord& record, GpuCounters* counters);
  void TakeReadings(const StepRecord& record, GpuCounters* counters);

  const std::unique_ptr<GpuSensors> sensors_;
  const GpuCounterOptions options_;
  std::string missing_;
  std::optional<double> max_sm_mhz_;
  bool in_step_ = false;
  int64_t steps_ = 0;  // of this process
  bool recorded_ = false;
  std::optional<Interval> interval_;
  Totals totals_;
  Readings readings_;
  absl::Time read_at_ = absl::InfinitePast();
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_GPU_COUNTERS_H_
