#ifndef BENCH_MEASURE_SENSED_WORK_H_
#define BENCH_MEASURE_SENSED_WORK_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/cuda/device.h"
#include "framework/observe/step_record.h"

namespace tessera {

// Work that was repeated while the GPU's sensors were read.
struct SensedWork {
  double ms = 0;  // of one repetition
  GpuCounters gpu;
  std::optional<double> joules;  // of one repetition; absent: not reported
};

// Repeats `work`, which must have run before, for about `time`, but at least
// twice. Sensors are refreshed about ten times a second, so `time` is to be
// several times that. Without a GPU nothing is sensed.
absl::StatusOr<SensedWork> RepeatUnderSensors(
    const std::function<absl::Status()>& work, const DeviceInfo& device,
    absl::Duration time);

}  // namespace tessera

#endif  // BENCH_MEASURE_SENSED_WORK_H_
