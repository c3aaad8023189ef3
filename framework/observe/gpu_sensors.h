#ifndef FRAMEWORK_OBSERVE_GPU_SENSORS_H_
#define FRAMEWORK_OBSERVE_GPU_SENSORS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// How busy a GPU's parts were, in percent of what they can do.
struct GpuUtilization {
  double sm = 0;      // time in which an SM had work, mean of the SMs
  double tensor = 0;  // time in which the tensor cores computed
  double dram = 0;    // of the memory's peak bandwidth
};

// What a GPU reports of itself. An error says why it does not report that: no
// permission, an older GPU, a driver that lacks the function.
class GpuSensors {
 public:
  virtual ~GpuSensors() = default;

  // Now.
  virtual absl::StatusOr<double> SmMhz() = 0;
  virtual absl::StatusOr<double> MemoryMhz() = 0;
  virtual absl::StatusOr<double> Celsius() = 0;
  // What holds the clock below its maximum now: "power_cap", "thermal".
  virtual absl::StatusOr<std::vector<std::string>> ThrottleReasons() = 0;

  virtual absl::StatusOr<double> MaxSmMhz() = 0;
  // Since the driver was loaded.
  virtual absl::StatusOr<double> EnergyJoules() = 0;

  // Starts the interval of Utilization().
  virtual absl::Status StartInterval() = 0;
  // Over the interval, which must be at least 100 ms long: NVML refreshes its
  // counters no faster. Starts the next interval.
  virtual absl::StatusOr<GpuUtilization> Utilization() = 0;
};

// NVML's sensors of the GPU or MIG instance of this UUID (DeviceInfo::uuid).
// NotFound without NVIDIA's driver.
absl::StatusOr<std::unique_ptr<GpuSensors>> OpenNvml(const std::string& uuid);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_GPU_SENSORS_H_
