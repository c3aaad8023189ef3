#ifndef FRAMEWORK_CUDA_DEVICE_SPEC_H_
#define FRAMEWORK_CUDA_DEVICE_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/cuda/device.h"

namespace tessera {

// How matrix products are computed.
enum class ProductKind {
  kFp32,  // no tensor cores
  kTf32,
  kHalf,  // BF16 or FP16 with FP32 accumulation
};

// The figures of NVIDIA's data sheet for a GPU.
struct DeviceSpec {
  absl::string_view short_name;  // "H200"
  absl::string_view name;        // the CUDA runtime's name
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

// The data sheet of the GPU with the CUDA runtime's `name`; null if it is not
// in the table. Never that of the nearest name: a figure against a wrong peak
// is worse than none. The user can set the peak of other GPUs with
// observe.peak_tflops.
const DeviceSpec* FindDeviceSpec(absl::string_view name);

// A listed GPU by its short name, for planning without the GPU. Case,
// punctuation, "RTX", "GB" and a size of 80 may differ: "a100-40" is
// "A100_40GB". InvalidArgument lists the known names.
absl::StatusOr<DeviceInfo> DeviceToPlanFor(absl::string_view short_name);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_DEVICE_SPEC_H_
