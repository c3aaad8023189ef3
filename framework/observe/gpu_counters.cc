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
}

void GpuCounterReader::BeginStep(int64_t /*step*/) {
  in_step_ = true;
  // The first record leaves the first step out unless it has no other.
  if (steps_ == 1 && !recorded_) {
    interval_.reset();
    totals_ = {};
    readings_ = {};
  }
  if (!interval_.has_value()) OpenInterval();
}

void GpuCounterReader::EndStep() {
  in_step_ = false;
  ++steps_;
  ++totals_.steps;
  if (options_.clock() - std::max(read_at_, interval_->begin) >= kRefresh) {
    Read();
  }
}

void GpuCounterReader::Begin(absl::string_view /*segment*/) {
  if (!in_step_ && interval_.has_value()) CloseInterval();
}

void GpuCounterReader::OpenInterval() {
  interval_ = {.begin = options_.clock(),
               .has_utilization = sensors_->StartInterval().ok()};
  if (const auto joules = sensors_->EnergyJoules(); joules.ok()) {
    interval_->begin_joules = *joules;
  }
}

void GpuCounterReader::CloseInterval() {
  const absl::Duration time = options_.clock() - interval_->begin;
  totals_.time += time;
  if (interval_->begin_joules.has_value()) {
    if (const auto joules = sensors_->EnergyJoules(); joules.ok()) {
      totals_.joules += *joules - *interval_->begin_joules;
      totals_.energy_time += time;
    }
  }
  if (interval_->has_utilization && time >= kRefresh) {
    if (const auto used = sensors_->Utilization(); used.ok()) {
      const double seconds = absl::ToDoubleSeconds(time);
      totals_.utilization.sm += used->sm * seconds;
      totals_.utilization.tensor += used->tensor * seconds;
      totals_.utilization.dram += used->dram * seconds;
      totals_.utilization_time += time;
    }
  }
  interval_.reset();
}

void GpuCounterReader::Read() {
  read_at_ = options_.clock();
  if (const auto mhz = sensors_->SmMhz(); mhz.ok()) {
    readings_.sm_mhz += *mhz;
    ++readings_.count;
  }
  if (const auto mhz = sensors_->MemoryMhz(); mhz.ok()) {
    readings_.memory_mhz = *mhz;
  }
  if (const auto celsius = sensors_->Celsius(); celsius.ok()) {
    readings_.celsius = *celsius;
  }
  if (const auto reasons = sensors_->ThrottleReasons(); reasons.ok()) {
    readings_.throttle_reasons.insert(reasons->begin(), reasons->end());
  }
}

absl::Status GpuCounterReader::AddTo(StepRecord* record) {
  recorded_ = true;
  if (options_.clock() - read_at_ >= kRefresh) Read();
  const absl::Duration open = interval_.has_value()
                                  ? options_.clock() - interval_->begin
                                  : absl::ZeroDuration();
  GpuCounters counters;
  TakeReadings(*record, &counters);
  if (totals_.time + open >= kRefresh) {
    if (interval_.has_value()) CloseInterval();
    TakeTotals(*record, &counters);
  }
  if (!counters.Known().empty()) record->gpu = std::move(counters);
  return absl::OkStatus();
}

void GpuCounterReader::TakeReadings(const StepRecord& record,
                                    GpuCounters* counters) {
  const Readings readings = std::exchange(readings_, {});
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

void GpuCounterReader::TakeTotals(const StepRecord& record,
                                  GpuCounters* counters) {
  const Totals totals = std::exchange(totals_, {});
  if (totals.energy_time > absl::ZeroDuration()) {
    counters->power_w =
        totals.joules / absl::ToDoubleSeconds(totals.energy_time);
    counters->joules_per_step =
        totals.joules / static_cast<double>(totals.steps);
    const double tokens_per_step = record.tokens_per_s * record.step_ms * 1e-3;
    counters->joules_per_token =
        *counters->joules_per_step * options_.world_size / tokens_per_step;
  }
  const double seconds = absl::ToDoubleSeconds(totals.utilization_time);
  if (seconds > 0) {
    counters->sm_percent = totals.utilization.sm / seconds;
    counters->tensor_percent = totals.utilization.tensor / seconds;
    counters->dram_percent = totals.utilization.dram / seconds;
  }
}

}  // namespace tessera
