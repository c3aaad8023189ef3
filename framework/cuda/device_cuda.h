#ifndef FRAMEWORK_CUDA_DEVICE_CUDA_H_
#define FRAMEWORK_CUDA_DEVICE_CUDA_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace cuda {

// The CUDA part of device.h; only in CUDA builds.
int VisibleDevices();
std::string DeviceName(int index);
absl::StatusOr<DeviceInfo> OpenDevice(int index, absl::string_view use_cpu);
int ComputeCapability(c10::Device device);
int64_t BytesInUse(c10::Device device);
std::string Version();

// The CUDA part of page_locked.h. UnlockPages() may be called after the GPU has
// failed.
absl::Status LockPages(c10::Device device, void* memory, int64_t bytes);
void UnlockPages(void* memory);

}  // namespace cuda
}  // namespace tessera

#endif  // FRAMEWORK_CUDA_DEVICE_CUDA_H_
