#include "framework/cuda/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/status_macros.h"
#ifdef TESSERA_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <cuda_runtime_api.h>
#endif

namespace tessera {
namespace {

absl::StatusOr<int> CapabilityLimit() {
  const char* const value = std::getenv("TESSERA_MAX_COMPUTE_CAPABILITY");
  int limit = std::numeric_limits<int>::max();
  if (value != nullptr && (!absl::SimpleAtoi(value, &limit) || limit < 10)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment's TESSERA_MAX_COMPUTE_CAPABILITY is '",
                     value, "'; it must be a number like 80, for 8.0"));
  }
  return limit;
}

#ifdef TESSERA_CUDA
// What cudaGetDeviceCount() found: `error`, or no device.
absl::string_view WhyNoDevice(cudaError_t error) {
  if (error == cudaSuccess) return "no device";
  int driver_version = 0;
  // Without a driver CUDA calls the driver too old.
  if (error == cudaErrorInsufficientDriver &&
      cudaDriverGetVersion(&driver_version) == cudaSuccess &&
      driver_version == 0) {
    return "no NVIDIA driver is installed";
  }
  return cudaGetErrorString(error);
}
#endif

// What a container may use of the host's memory (cgroups 2 and 1), if it is
// limited.
int64_t ContainerLimit() {
  int64_t limit = std::numeric_limits<int64_t>::max();
  for (const char* path : {"/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    if (int64_t bytes; file >> bytes) limit = std::min(limit, bytes);
  }
  return limit;
}

}  // namespace

DeviceInfo CpuDevice() {
  // Activations of tens of MiB come and go in every step. By default glibc
  // maps and unmaps each, and the kernel zeroes its pages anew: a third of a
  // step of configs/tiny_cpu.pbtxt (440 against 340 ms on two cores).
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  DeviceInfo info;
  const int threads = at::get_num_threads();
  info.name =
      absl::StrFormat("CPU, %d thread%s", threads, threads == 1 ? "" : "s");
  const int64_t page = sysconf(_SC_PAGESIZE);
  info.total_bytes =
      std::min<int64_t>(sysconf(_SC_PHYS_PAGES) * page, ContainerLimit());
  info.free_bytes = sysconf(_SC_AVPHYS_PAGES) * page;
  return info;
}

#ifdef TESSERA_CUDA
int VisibleCudaDevices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::StatusOr<DeviceInfo> OpenCudaDevice(int index,
                                          absl::string_view use_cpu) {
  RETURN_IF_ERROR(CapabilityLimit().status());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a CUDA device was asked for, but none can be used here (",
        WhyNoDevice(error),
        "); check the driver and CUDA_VISIBLE_DEVICES, or use the CPU: ",
        use_cpu));
  }
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA device ", index,
                     " was asked for, but this machine "
                     "has ",
                     count, "; start at most that many ranks on it"));
  }
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, index);
  DeviceInfo info;
  info.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  info.name = properties.name;
  info.compute_capability = ComputeCapability(info.device);
  info.multiprocessors = properties.multiProcessorCount;
  at::globalContext().lazyInitDevice(c10::kCUDA);
  at::accelerator::setDeviceIndex(info.device.index());
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.total_bytes = static_cast<int64_t>(total_bytes);
  return info;
}
#else
int VisibleCudaDevices() { return 0; }

absl::StatusOr<DeviceInfo> OpenCudaDevice(int index,
                                          absl::string_view use_cpu) {
  return absl::FailedPreconditionError(absl::StrCat(
      "CUDA device ", index,
      " was asked for, but this program was built "
      "without CUDA; build with --config=cuda where there is a GPU, or use "
      "the CPU: ",
      use_cpu));
}
#endif

MemoryUse CurrentMemory(c10::Device device) {
  if (!device.is_cuda()) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const int64_t resident = int64_t{usage.ru_maxrss} * 1024;
    return {resident, resident, resident, resident};
  }
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto& allocated = stats.allocated_bytes[0];  // index 0: all pools
  const auto& reserved = stats.reserved_bytes[0];
  return {allocated.current, allocated.peak, reserved.current, reserved.peak};
}

void ResetPeakMemory(c10::Device device) {
  if (device.is_cuda()) at::accelerator::resetPeakStats(device.index());
}

int ComputeCapability(c10::Device device) {
  if (!device.is_cuda()) return 0;
  int capability = 0;
#ifdef TESSERA_CUDA
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                         device.index());
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                         device.index());
  capability = 10 * major + minor;
#endif
  static const int limit = CapabilityLimit().value_or(0);
  return std::min(capability, limit);
}

int64_t BlasWorkspaceBytes(const DeviceInfo& device) {
  if (!device.is_cuda()) return 0;
  constexpr int64_t kMiB = int64_t{1} << 20;
  return device.compute_capability >= 90 ? 32 * kMiB : 8 * kMiB + (kMiB >> 3);
}

void Synchronize(c10::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace tessera
