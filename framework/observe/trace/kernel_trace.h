#ifndef FRAMEWORK_OBSERVE_TRACE_KERNEL_TRACE_H_
#define FRAMEWORK_OBSERVE_TRACE_KERNEL_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "framework/base/phase_observer.h"
#include "framework/observe/instrument.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/critical_path.h"
#include "framework/observe/trace/idle_time.h"
#include "framework/observe/trace/step_profile.h"
#include "framework/observe/trace/trace.h"
#include "framework/observe/trace/trace_recorder.h"
#include "framework/observe/trace_schedule.h"
#include "framework/program/printer.h"
#include "nlohmann/json.hpp"

namespace tessera {

struct KernelTraceOptions {
  TraceSchedule schedule;
  std::string folder;  // RUN/trace
  int rank = 0, world_size = 1;
  bool simulated = false;     // this rank is the only one
  std::string device;         // "NVIDIA H200"
  std::vector<StepRow> rows;  // of the step, unfolded
  DeviceRates rates;          // the device's peaks
};

// Traces some steps of a run and says where their time went. Each window of
// steps becomes a folder, FOLDER/steps_A-B:
//   trace.json.gz   for Perfetto and HolisticTraceAnalysis
//   profile.json    ProfileToJson()
//   profile.txt     the same as tables
// of rank 0, or a simulated rank; the other ranks write trace_rank1.json.gz,
// ..., if their machine has the run's folder, and warn if not.
//
// With `counters` it first counts the kernels of kCountedStep, for all
// profiles. If counters cannot be read, the profiles say why.
class KernelTrace : public Instrument, public PhaseObserver {
 public:
  // `counters`: CuptiKernelCounters(), or null.
  KernelTrace(KernelTraceOptions options,
              std::unique_ptr<ActivitySource> source,
              std::unique_ptr<ActivitySource> counters = nullptr);

  PhaseObserver* phases() override { return this; }
  absl::Status AddTo(StepRecord* record) override;
  // After the last step of a window, or when recording has failed.
  bool IsDue() const override { return due_ || !status_.ok(); }
  absl::Status Collect() override;
  // A run that ends within a window keeps what it recorded.
  absl::Status OnTrainEnd(const absl::Status&) override {
    return recording_ && first_step_ > 0 ? Collect() : absl::OkStatus();
  }

  void BeginStep(int64_t step) noexcept override;
  void EndStep() noexcept override;
  void Begin(absl::string_view segment) noexcept override {
    current().Begin(segment);
  }
  void End() noexcept override { current().End(); }
  void BeginOp(absl::string_view name, OpResults results) noexcept override {
    current().BeginOp(name, results);
  }
  void EndOp() noexcept override { current().EndOp(); }

 private:
  TraceRecorder& current() { return counting_ ? *counter_ : recorder_; }
  void BeginCounting(int64_t step);
  void EndCounting();
  void GiveUpCounting(const absl::Status& why);

  const KernelTraceOptions options_;
  TraceRecorder recorder_;
  std::unique_ptr<TraceRecorder> counter_;  // null: nothing is left to count
  bool counting_ = false;
  StepProfile counted_;  // of the counted step
  bool recording_ = false;
  bool due_ = false;
  int64_t n_ = 0;             // steps of this process that have begun
  int64_t traced_steps_ = 0;  // since the last record
  int64_t first_step_ = 0, last_step_ = 0;  // of the window
  absl::Status status_;
};

// {"step", "idle", "critical_path"}: StepProfileToJson(), IdleTimeToJson(),
// CriticalPathToJson().
// `profile`, `idle` and `path`: those of one trace.
nlohmann::ordered_json ProfileToJson(const StepProfile& profile,
                                     const IdleTimeReport& idle,
                                     const CriticalPath& path);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_KERNEL_TRACE_H_
