#include "framework/cuda/device_cuda.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_status.h"

namespace tessera {
namespace cuda {
namespace {

// Why cudaGetDeviceCount() found no device.
absl::string_view WhyNoDevice(cudaError_t error) {
  if (error == cudaSuccess) return "no device";
  int driver_version = 0;
  // Without a driver, CUDA reports that the driver is too old.
  if (error == cudaErrorInsufficientDriver &&
      cudaDriverGetVersion(&driver_version) == cudaSuccess &&
      driver_version == 0) {
    return "no NVIDIA driver is installed";
  }
  return cudaGetErrorString(error);
}

// `status` of making a GPU ready.
absl::Status CannotOpen(int index, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("CUDA device ", index, " cannot be used: ", status.message(),
                   absl::IsResourceExhausted(status)
                       ? "; end the processes that hold its memory, which "
                         "nvidia-smi lists, or use another GPU "
                         "(CUDA_VISIBLE_DEVICES)"
                       : ""));
}

std::string FormatUuid(const cudaUUID_t& uuid) {
  const std::string hex =
      absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  const absl::string_view digits = hex;
  return absl::StrJoin(
      {digits.substr(0, 8), digits.substr(8, 4), digits.substr(12, 4),
       digits.substr(16, 4), digits.substr(20)},
      "-");
}

}  // namespace

int VisibleDevices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string DeviceName(int index) {
  cudaDeviceProp properties;
  return cudaGetDeviceProperties(&properties, index) == cudaSuccess
             ? properties.name
             : "";
}

absl::StatusOr<DeviceInfo> OpenDevice(int index, absl::string_view use_cpu) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a CUDA device was requested, but none can be used here (",
        WhyNoDevice(error),
        "); check the driver and CUDA_VISIBLE_DEVICES, or use the CPU: ",
        use_cpu));
  }
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA device ", index, " was requested, but this machine has only ",
        count, "; start at most that many ranks on it"));
  }
  DeviceInfo info;
  info.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  cudaDeviceProp properties;
  size_t free_bytes = 0, total_bytes = 0;
  const absl::Status opened = StatusFromTorchOr([&]() -> absl::Status {
    RETURN_IF_ERROR(AsStatus(cudaGetDeviceProperties(&properties, index),
                             "reading its properties"));
    at::globalContext().lazyInitDevice(c10::kCUDA);
    at::accelerator::setDeviceIndex(info.device.index());
    return AsStatus(cudaMemGetInfo(&free_bytes, &total_bytes),
                    "reading the size of its memory");
  });
  if (!opened.ok()) return CannotOpen(index, opened);
  info.name = properties.name;
  info.compute_capability = tessera::ComputeCapability(info.device);
  info.multiprocessors = properties.multiProcessorCount;
  info.uuid = FormatUuid(properties.uuid);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.total_bytes = static_cast<int64_t>(total_bytes);
  return info;
}

int64_t BytesInUse(c10::Device device) {
  const c10::DeviceGuard guard(device);
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  return static_cast<int64_t>(total_bytes - free_bytes);
}

int ComputeCapability(c10::Device device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                         device.index());
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                         device.index());
  return 10 * major + minor;
}

absl::Status LockPages(c10::Device device, void* memory, int64_t bytes) {
  const c10::DeviceGuard guard(device);
  const cudaError_t error =
      cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // a later call must not report it
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot page-lock ", bytes, " bytes: ", cudaGetErrorString(error)));
}

void UnlockPages(void* memory) {
  if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
}

std::string Version() {
  return absl::StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
}

}  // namespace cuda
}  // namespace tessera
