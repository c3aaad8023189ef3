#include "framework/observe/gpu_counters.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

// NVML asks for more than 100 ms between two samples of its counters.
constexpr absl::Duration kRefresh = absl::Milliseconds(110);
// Much longer than a sample of its counters takes, 9 ms on an H200.
constexpr absl::Duration kInterval = absl::Seconds(1);
// Time without steps that an interval may include.
constexpr absl::Duration kTolerance = absl::Milliseconds(20);
// A driver that hangs must not keep a run from its last checkpoint.
constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

GpuCounterReader::GpuCounterReader(std::unique_ptr<GpuSensors> sensors,
                                   GpuCounterOptions options)
    : sensors_(std::move(sensors)), options_(std::move(options)) {
  std::vector<std::string> missing;
  const auto probe = [&](absl::string_view what, const absl::Status& status) {
    if (status.ok()) return;
    missing.push_back(absl::StrCat("no ", what, " (", status.message(), ")"));
  };
  probe("SM clock", sensors_->SmMhz().status());
  probe("memory clock", sensors_->MemoryMhz().status());
  probe("temperature", sensors_->Celsius().status());
  probe("throttle reasons", sensors_->ThrottleReasons().status());
  probe("power and energy", sensors_->EnergyJoules().status());
  probe("utilization of SMs, tensor cores and memory",
        sensors_->StartInterval());
  missing_ = absl::StrJoin(missing, ", ");
  if (const auto mhz = sensors_->MaxSmMhz(); mhz.ok()) max_sm_mhz_ = *mhz;
  if (options_.use_thread) thread_.emplace();
}

void GpuCounterReader::Finish() {
  const absl::Time now = options_.clock();
  if (open_since_.has_value()) PostClose(now);
  PostRead(now);
  WaitForRequests(kPatience);
}

absl::Status GpuCounterReader::OnTrainStart(const RunDescription& run) {
  last_step_ = run.steps;
  return absl::OkStatus();
}

absl::Status GpuCounterReader::AddTo(StepRecord* record) {
  idle_since_ = options_.clock();
  if (record->step == last_step_) {
    Finish();
  } else if (idle_since_ - read_at_ >= kRefresh &&
             WaitForRequests(absl::ZeroDuration())) {
    PostRead(idle_since_);
  }
  Readings readings;
  Totals totals;
  {
    const absl::MutexLock lock(&mutex_);
    std::swap(readings, readings_);
    std::swap(totals, totals_);
  }
  GpuCounters counters;
  AddReadings(readings, *record, &counters);
  AddTotals(totals, *record, &counters);
  if (counters != GpuCounters()) record->gpu = std::move(counters);
  return absl::OkStatus();
}

void GpuCounterReader::BeginStep(int64_t /*step*/) noexcept {
  in_step_ = true;
  const absl::Time now = options_.clock();
  const bool paused = now - idle_since_ > kTolerance;
  idle_since_ = absl::InfiniteFuture();
  // The second step drops the first.
  if (open_since_.has_value() && !paused && steps_ != 1) return;
  open_since_ = now;
  Post([this] { Open(); });
}

void GpuCounterReader::EndStep() noexcept {
  in_step_ = false;
  if (steps_++ == 0) return;
  // Slow sensors get no more requests than they can answer.
  if (!WaitForRequests(absl::ZeroDuration())) return;
  const absl::Time now = options_.clock();
  const bool reads = now - std::max(read_at_, *open_since_) >= kRefresh;
  if (now - *open_since_ >= kInterval) {
    open_since_ = now;
    Post([this, now] {
      if (!Close(now)) Open();
    });
  }
  if (reads) PostRead(now);
}

void GpuCounterReader::Begin(absl::string_view /*segment*/) noexcept {
  if (!in_step_ && open_since_.has_value()) PostClose(options_.clock());
}

void GpuCounterReader::Post(std::function<void()> request) {
  if (thread_.has_value()) {
    thread_->Post(std::move(request));
  } else {
    request();
  }
}

bool GpuCounterReader::WaitForRequests(absl::Duration timeout) {
  return !thread_.has_value() || thread_->WaitUntilIdle(timeout);
}

void GpuCounterReader::PostRead(absl::Time now) {
  read_at_ = now;
  Post([this] { Read(); });
}

void GpuCounterReader::PostClose(absl::Time now) {
  open_since_.reset();
  Post([this, steps_end = std::min(now, idle_since_)] { Close(steps_end); });
}

void GpuCounterReader::Read() {
  const auto sm_mhz = sensors_->SmMhz();
  const auto memory_mhz = sensors_->MemoryMhz();
  const auto celsius = sensors_->Celsius();
  const auto reasons = sensors_->ThrottleReasons();
  const absl::MutexLock lock(&mutex_);
  if (sm_mhz.ok()) {
    readings_.sm_mhz += *sm_mhz;
    ++readings_.count;
  }
  if (memory_mhz.ok()) readings_.memory_mhz = *memory_mhz;
  if (celsius.ok()) readings_.celsius = *celsius;
  if (reasons.ok()) {
    readings_.throttle_reasons.insert(reasons->begin(), reasons->end());
  }
}

void GpuCounterReader::Open() {
  // The slow call first, so that time and energy are of one moment.
  interval_.has_utilization = sensors_->StartInterval().ok();
  interval_.begin = options_.clock();
  interval_.joules = sensors_->EnergyJoules();
}

bool GpuCounterReader::Close(absl::Time steps_end) {
  const absl::Time now = options_.clock();
  const absl::Duration time = now - interval_.begin;
  if (time < kRefresh || now - steps_end > kTolerance) return false;
  interval_.begin = now;
  const absl::StatusOr<double> before =
      std::exchange(interval_.joules, sensors_->EnergyJoules());
  absl::StatusOr<GpuUtilization> used;  // an error
  if (interval_.has_utilization) used = sensors_->Utilization();
  const absl::MutexLock lock(&mutex_);
  if (before.ok() && interval_.joules.ok()) {
    totals_.joules += *interval_.joules - *before;
    totals_.energy_time += time;
  }
  if (used.ok()) {
    const double seconds = absl::ToDoubleSeconds(time);
    totals_.utilization.sm += used->sm * seconds;
    totals_.utilization.tensor += used->tensor * seconds;
    totals_.utilization.dram += used->dram * seconds;
    totals_.utilization_time += time;
  }
  return true;
}

void GpuCounterReader::AddReadings(const Readings& readings,
                                   const StepRecord& record,
                                   GpuCounters* counters) const {
  counters->memory_mhz = readings.memory_mhz;
  counters->celsius = readings.celsius;
  counters->throttle_reasons.assign(readings.throttle_reasons.begin(),
                                    readings.throttle_reasons.end());
  if (readings.count == 0) return;
  counters->sm_mhz = readings.sm_mhz / readings.count;
  const std::optional<double> peak_mhz =
      options_.peak_mhz.has_value() ? options_.peak_mhz : max_sm_mhz_;
  if (record.mfu.has_value() && peak_mhz.has_value()) {
    counters->mfu_at_clock = *record.mfu * *peak_mhz / *counters->sm_mhz;
  }
}

void GpuCounterReader::AddTotals(const Totals& totals, const StepRecord& record,
                                 GpuCounters* counters) const {
  if (totals.energy_time > absl::ZeroDuration()) {
    const double watts =
        totals.joules / absl::ToDoubleSeconds(totals.energy_time);
    counters->power_w = watts;
    counters->joules_per_step = watts * record.step_ms * 1e-3;
    counters->joules_per_token =
        watts * options_.world_size / record.tokens_per_s;
  }
  const double seconds = absl::ToDoubleSeconds(totals.utilization_time);
  if (seconds > 0) {
    counters->sm_percent = totals.utilization.sm / seconds;
    counters->tensor_percent = totals.utilization.tensor / seconds;
    counters->dram_percent = totals.utilization.dram / seconds;
  }
}

}  // namespace tessera
