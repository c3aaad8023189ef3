#ifndef FRAMEWORK_CUDA_DEVICE_SPEC_H_
#define FRAMEWORK_CUDA_DEVICE_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/cuda/device.h"

namespace tessera {

// How a run's matrix products are computed.
enum class ProductKind {
  kFp32,  // no tensor cores
  kTf32,
  kHalf,  // BF16 or FP16 with FP32 accumulation
};

// What NVIDIA's data sheet says of a GPU.
struct DeviceSpec {
  absl::string_view short_name;  // "H200"
  absl::string_view name;        // what the CUDA runtime calls it
  int compute_capability = 0;    // 90 for 9.0
  int multiprocessors = 0;
  double memory_gib = 0;                // as the CUDA runtime reports it
  double fp32 = 0, tf32 = 0, half = 0;  // TFLOP/s, dense
  double memory_gb_per_s = 0;

  double tflops(ProductKind kind) const;
  // The SM clock at which the multiprocessors reach tflops(kind). Data sheets
  // give Hopper's tensor cores less than the highest clock: 1,829 MHz of an
  // H200's 1,980. Absent if what an SM of this capability does is not listed.
  std::optional<double> peak_mhz(ProductKind kind) const;
};

// Of the GPU that the CUDA runtime calls `name`. Null for a name that is not in
// the table, never the nearest: a figure against a wrong peak is worse than
// none. The user gives such a peak as observe.peak_tflops.
const DeviceSpec* FindDeviceSpec(absl::string_view name);

// The GPU of that short name, as if it were here. InvalidArgument names those
// that there are.
absl::StatusOr<DeviceInfo> DeviceToPlanFor(absl::string_view short_name);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_DEVICE_SPEC_H_
