#include "bench/measure/sensed_work.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/observe/gpu_counters.h"
#include "framework/observe/gpu_sensors.h"

namespace tessera {
namespace {

// Work between two looks at the clock.
constexpr absl::Duration kBatch = absl::Milliseconds(20);

// How often `work` is called between two looks at the clock.
absl::StatusOr<int> CallsPerBatch(const std::function<absl::Status()>& work,
                                  c10::Device device) {
  for (int calls = 1;; calls *= 2) {
    Synchronize(device);
    const absl::Time begin = MonotonicNow();
    for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(work());
    Synchronize(device);
    if (MonotonicNow() - begin >= kBatch / 2) return calls;
  }
}

}  // namespace

absl::StatusOr<SensedWork> RepeatUnderSensors(
    const std::function<absl::Status()>& work, const DeviceInfo& device,
    absl::Duration time) {
  ASSIGN_OR_RETURN(const int calls, CallsPerBatch(work, device.device));
  std::unique_ptr<GpuCounterReader> counters;
  if (auto sensors = OpenNvml(device.uuid); sensors.ok()) {
    counters = std::make_unique<GpuCounterReader>(*std::move(sensors),
                                                  GpuCounterOptions());
  }
  int64_t batches = 0;
  const absl::Time begin = MonotonicNow();
  absl::Duration elapsed;
  while (batches < 2 || elapsed < time) {
    const StepScope scope(counters.get(), ++batches);
    for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(work());
    Synchronize(device.device);
    elapsed = MonotonicNow() - begin;
  }
  SensedWork sensed = {.ms = absl::ToDoubleMilliseconds(elapsed) /
                             static_cast<double>(batches * calls)};
  if (counters == nullptr) return sensed;
  // A "step" of the reader is a batch of calls.
  StepRecord record{.step_ms = sensed.ms * calls};
  counters->Finish();
  RETURN_IF_ERROR(counters->AddTo(&record));
  sensed.gpu = record.gpu.value_or(GpuCounters());
  if (sensed.gpu.joules_per_step.has_value()) {
    sensed.joules = *sensed.gpu.joules_per_step / calls;
  }
  return sensed;
}

}  // namespace tessera
