#ifndef FRAMEWORK_CUDA_DEVICE_H_
#define FRAMEWORK_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "c10/core/Stream.h"

namespace tessera {

// The device that a run computes on.
struct DeviceInfo {
  c10::Device device = c10::kCPU;
  std::string name;            // "NVIDIA H200"; "CPU, 2 threads"
  int compute_capability = 0;  // ComputeCapability()
  int multiprocessors = 0;
  // "6e8e2a3c-...": the GPU's, or the MIG instance's, without the "GPU-" or
  // "MIG-" of nvidia-smi. Empty on a CPU.
  std::string uuid;
  // The device's memory; on a CPU, the machine's.
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;

  bool is_cuda() const { return device.is_cuda(); }
};

// The CPU as a device. Also makes the process keep freed memory for the next
// step instead of returning it to the system.
DeviceInfo CpuDevice();

// The CUDA version that this program was built with, "13.0"; empty without.
std::string CudaVersion();

// The number of GPUs that this process may use; 0 also if none can be used.
int VisibleCudaDevices();

// DeviceInfo::name of the `index`-th visible GPU, which stays closed: a
// process that opens it takes memory there. Empty if there is none.
std::string CudaDeviceName(int index);

// Opens the `index`-th visible GPU and makes it the calling thread's current
// device. FailedPrecondition if this build has no CUDA, or the machine has no
// GPU, none with that index, or one that CheckRunsKernels() refuses;
// ResourceExhausted if the GPU has no memory left for this process. The message
// says which, and what to change.
// `use_cpu` is how the user of this program selects the CPU instead.
absl::StatusOr<DeviceInfo> OpenCudaDevice(
    int index, absl::string_view use_cpu =
                   "--set training.device=CPU, or configs/tiny_cpu.pbtxt");

// FailedPrecondition if our kernels are not compiled for `gpu`: if it is older
// than compute capability 8.0. `use_cpu` is as for OpenCudaDevice().
absl::Status CheckRunsKernels(const DeviceInfo& gpu, absl::string_view use_cpu);

// 90 for compute capability 9.0; 0 on a CPU. Limited by the environment
// variable TESSERA_MAX_COMPUTE_CAPABILITY, which makes it possible to test and
// measure kernels for older GPUs on a newer one.
int ComputeCapability(c10::Device device);

// Bytes of shared memory that a thread block can have (CUDA C++ Programming
// Guide, "Technical Specifications per Compute Capability").
int MostSharedBytes(int compute_capability);

// Bytes in LibTorch's caching allocator. LibTorch's CPU allocator keeps no
// statistics, so on a CPU all four are the process's resident set, and peaks
// are since it started.
struct MemoryUse {
  int64_t allocated = 0;
  int64_t peak_allocated = 0;
  int64_t reserved = 0;
  int64_t peak_reserved = 0;
};
MemoryUse CurrentMemory(c10::Device device);
// Resets the peaks to what is allocated now; no effect on a CPU.
void ResetPeakMemory(c10::Device device);

// Returns unused memory of LibTorch's allocator to the GPU; no effect on a CPU.
void EmptyCache(c10::Device device);

// Bytes of workspace that LibTorch gives cuBLAS, per thread and stream.
int64_t BlasWorkspaceBytes(const DeviceInfo& device);

// An estimate of the bytes that a process takes from a GPU beside LibTorch's
// allocator: the driver's context, kernels, cuBLAS. NCCL's buffers are not
// included. 6 MiB for each multiprocessor, 792 MiB on an H200, where a step of
// 2.7B in BF16 was seen to take 759 MiB. A process of PyTorch takes less: 12 of
// its out-of-memory messages imply 0.2 to 0.7 GiB (total in use - allocated -
// reserved; A100, H100, L4, L40S, A6000, 6000 Ada, 4090, 5090). A run with
// observe.memory measures it, as `outside` of its memory records.
int64_t ContextBytes(const DeviceInfo& device);

// Bytes in use on the GPU, by all processes; 0 on a CPU.
int64_t BytesInUse(c10::Device device);

// On a GPU: the stream that work is issued to; another one, of low priority.
c10::Stream CurrentStream(c10::Device device);
c10::Stream StreamFromPool(c10::Device device);
// What `stream` is given from now on waits for what `other` has been given.
void MakeWait(c10::Stream stream, c10::Stream other);

// Waits until `device` has finished everything issued to it.
void Synchronize(c10::Device device);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_DEVICE_H_
