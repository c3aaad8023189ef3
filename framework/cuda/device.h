#ifndef FRAMEWORK_CUDA_DEVICE_H_
#define FRAMEWORK_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"

namespace tessera {

// A device that a run computes on.
struct DeviceInfo {
  c10::Device device = c10::kCPU;
  std::string name;            // "NVIDIA H200"; "CPU, 2 threads"
  int compute_capability = 0;  // ComputeCapability()
  int multiprocessors = 0;
  // "6e8e2a3c-...": the GPU's, or the MIG instance's, without the "GPU-" or
  // "MIG-" of nvidia-smi. Empty on a CPU.
  std::string uuid;
  // Of the device's own memory; the machine's on a CPU.
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;

  bool is_cuda() const { return device.is_cuda(); }
};

// Also makes the process keep freed memory for the next step, instead of
// returning it to the system.
DeviceInfo CpuDevice();

// The CUDA release that this program was built with, "13.0"; empty without.
std::string CudaVersion();

// GPUs that this process may use; 0 also where none can be used.
int VisibleCudaDevices();

// The `index`-th visible GPU, made the calling thread's current device.
// FailedPrecondition when this build has no CUDA, the machine has no GPU, or
// it has no such index; the message says which and what to change.
// `use_cpu` is how the user of this program asks for the CPU instead.
absl::StatusOr<DeviceInfo> OpenCudaDevice(
    int index, absl::string_view use_cpu =
                   "--set training.device=CPU, or configs/tiny_cpu.pbtxt");

// 90 for compute capability 9.0; 0 on a CPU. No more than the environment's
// TESSERA_MAX_COMPUTE_CAPABILITY, where that is set: so kernels for older GPUs
// can be run, tested and measured on a newer one.
int ComputeCapability(c10::Device device);

// Bytes in LibTorch's caching allocator. On a CPU, whose allocator keeps no
// count, all four are the process's resident set, peaks since it started.
struct MemoryUse {
  int64_t allocated = 0;
  int64_t peak_allocated = 0;
  int64_t reserved = 0;
  int64_t peak_reserved = 0;
};
MemoryUse CurrentMemory(c10::Device device);
// Peaks start again from what is allocated now; no effect on a CPU.
void ResetPeakMemory(c10::Device device);

// Returns to the GPU what LibTorch's allocator keeps but nobody uses; no effect
// on a CPU.
void EmptyCache(c10::Device device);

// Bytes that LibTorch gives cuBLAS to work in, once for a thread and stream.
int64_t BlasWorkspaceBytes(const DeviceInfo& device);

// Makes the host wait for everything issued to `device`.
void Synchronize(c10::Device device);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_DEVICE_H_
