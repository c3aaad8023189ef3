#include "framework/observe/timing.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

absl::StatusOr<double> TimeOnHost(absl::FunctionRef<absl::Status()> fn) {
  const int64_t start = absl::GetCurrentTimeNanos();
  RETURN_IF_ERROR(fn());
  return static_cast<double>(absl::GetCurrentTimeNanos() - start) * 1e-6;
}

absl::StatusOr<double> TimeOnDevice(absl::FunctionRef<absl::Status()> fn,
                                    c10::Device device) {
  double elapsed_ms = 0;
  RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
    const c10::Stream stream =
        at::accelerator::getCurrentStream(device.index());
    c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    RETURN_IF_ERROR(fn());
    end.record(stream);
    end.synchronize();
    elapsed_ms = start.elapsedTime(end);
    return absl::OkStatus();
  }));
  return elapsed_ms;
}

}  // namespace

absl::StatusOr<double> TimeOnceMs(absl::FunctionRef<absl::Status()> fn,
                                  c10::Device device) {
  return device.is_cpu() ? TimeOnHost(fn) : TimeOnDevice(fn, device);
}

absl::StatusOr<Timing> Measure(absl::FunctionRef<absl::Status()> fn,
                               c10::Device device, int warmup, int iterations) {
  for (int i = 0; i < warmup; ++i) RETURN_IF_ERROR(fn());
  std::vector<double> ms(iterations);
  for (double& sample : ms) {
    ASSIGN_OR_RETURN(sample, TimeOnceMs(fn, device));
  }
  std::sort(ms.begin(), ms.end());
  return Timing{
      .median_ms = (ms[(iterations - 1) / 2] + ms[iterations / 2]) / 2,
      .min_ms = ms.front(),
      .max_ms = ms.back()};
}

}  // namespace tessera
