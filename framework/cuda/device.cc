#include "framework/cuda/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
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
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device_cuda.h"

namespace tessera {
namespace {

// Every source is compiled for this or newer (tools/cuda/cuda_library.bzl).
constexpr int kLeastCapability = 80;

absl::StatusOr<int> CapabilityLimit() {
  const char* const value = std::getenv("TESSERA_MAX_COMPUTE_CAPABILITY");
  int limit = std::numeric_limits<int>::max();
  if (value != nullptr &&
      (!absl::SimpleAtoi(value, &limit) || limit < kLeastCapability)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment variable TESSERA_MAX_COMPUTE_CAPABILITY "
                     "is '",
                     value, "'; it must be a number from 80, for 8.0"));
  }
  return limit;
}

// The container's limit on host memory (cgroups 2 and 1), if there is one.
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
  // Every step allocates and frees tens of MiB of activations. By default glibc
  // maps and unmaps each, and the kernel zeroes its pages again: 440 instead of
  // 340 ms per step of configs/tiny_cpu.pbtxt on two cores.
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

int VisibleCudaDevices() {
  if constexpr (kCudaBuild) return cuda::VisibleDevices();
  return 0;
}

std::string CudaDeviceName(int index) {
  if constexpr (kCudaBuild) return cuda::DeviceName(index);
  return "";
}

absl::StatusOr<DeviceInfo> OpenCudaDevice(int index,
                                          absl::string_view use_cpu) {
  RETURN_IF_ERROR(CapabilityLimit().status());
  if constexpr (kCudaBuild) {
    ASSIGN_OR_RETURN(DeviceInfo gpu, cuda::OpenDevice(index, use_cpu));
    RETURN_IF_ERROR(CheckRunsKernels(gpu, use_cpu));
    return gpu;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "CUDA device ", index,
      " was requested, but this program was built without CUDA; build with "
      "--config=cuda for a machine with a GPU, or use "
      "the CPU: ",
      use_cpu));
}

absl::Status CheckRunsKernels(const DeviceInfo& gpu,
                              absl::string_view use_cpu) {
  if (gpu.compute_capability >= kLeastCapability) return absl::OkStatus();
  const auto name = [](int capability) {
    return absl::StrCat(capability / 10, ".", capability % 10);
  };
  return absl::FailedPreconditionError(absl::StrCat(
      "CUDA device ", int{gpu.device.index()}, ", ", gpu.name,
      ", has compute capability ", name(gpu.compute_capability),
      "; the kernels need ", name(kLeastCapability),
      " or newer; use another GPU (CUDA_VISIBLE_DEVICES), or the CPU: ",
      use_cpu));
}

std::string CudaVersion() {
  if constexpr (kCudaBuild) return cuda::Version();
  return "";
}

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

void EmptyCache(c10::Device device) {
  if (device.is_cuda()) at::accelerator::emptyCache();
}

int ComputeCapability(c10::Device device) {
  if (!device.is_cuda()) return 0;
  int capability = 0;
  if constexpr (kCudaBuild) capability = cuda::ComputeCapability(device);
  static const int limit = CapabilityLimit().value_or(0);
  return std::min(capability, limit);
}

int MostSharedBytes(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87:
      return 163 << 10;
    case 90:
    case 100:
    case 101:
    case 103:
    case 110:
      return 227 << 10;
    default:
      return 99 << 10;
  }
}

int64_t BlasWorkspaceBytes(const DeviceInfo& device) {
  if (!device.is_cuda()) return 0;
  constexpr int64_t kMiB = int64_t{1} << 20;
  return device.compute_capability >= 90 ? 32 * kMiB : 8 * kMiB + (kMiB >> 3);
}

int64_t ContextBytes(const DeviceInfo& device) {
  return device.is_cuda() ? device.multiprocessors * (int64_t{6} << 20) : 0;
}

int64_t BytesInUse(c10::Device device) {
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) return cuda::BytesInUse(device);
  }
  return 0;
}

c10::Stream CurrentStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream StreamFromPool(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

void MakeWait(c10::Stream stream, c10::Stream other) {
  c10::Event given(other.device_type());
  given.record(other);
  given.block(stream);
}

void Synchronize(c10::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace tessera
