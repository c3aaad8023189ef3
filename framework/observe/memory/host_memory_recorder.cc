#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <functional>
#include <memory>
#include <utility>

#include "framework/cuda/cuda_build.h"
#include "framework/observe/memory/allocation_recorder.h"

namespace tessera {
namespace {

// LibTorch's CPU allocator reports to the thread's profiler.
class Reports : public c10::MemoryReportingInfoBase {
 public:
  using Sink = std::function<void(const void* address, int64_t bytes)>;
  explicit Reports(Sink sink) : sink_(std::move(sink)) {}

  // `bytes` < 0: freed.
  void reportMemoryUsage(void* address, int64_t bytes, size_t, size_t,
                         c10::Device device) override {
    if (device.is_cpu()) sink_(address, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  const Sink sink_;
};

class Recorder : public AllocationRecorder {
 public:
  explicit Recorder(const MemoryRecorderOptions& options)
      : AllocationRecorder(options),
        reports_(c10::DebugInfoKind::PROFILER_STATE,
                 std::make_shared<Reports>(
                     [this](const void* address, int64_t bytes) {
                       const absl::MutexLock lock(&mutex_);
                       Record(address, bytes);
                     })) {}

  void Own(MemoryCategory category, const at::Tensor& buffer) override {
    const absl::MutexLock lock(&mutex_);
    const auto address = reinterpret_cast<uint64_t>(buffer.const_data_ptr());
    if (!log_.IsAllocated(address)) {  // older than the recorder
      log_.Allocate(address, static_cast<int64_t>(buffer.nbytes()));
    }
    log_.Own(category, address);
  }

 protected:
  // The allocator has no count of its own, and keeps nothing that is free.
  MemoryUse Count() override {
    const absl::MutexLock lock(&mutex_);
    const int64_t bytes = log_.allocated();
    return {.allocated = bytes, .reserved = bytes};
  }

 private:
  void Record(const void* address, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (bytes >= 0) {
      log_.Allocate(reinterpret_cast<uint64_t>(address), bytes);
    } else {
      log_.Free(reinterpret_cast<uint64_t>(address));
    }
  }

  const c10::DebugInfoGuard reports_;
};

}  // namespace

std::unique_ptr<MemoryRecorder> CreateMemoryRecorder(
    c10::Device device, const MemoryRecorderOptions& options) {
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) return CreateCudaMemoryRecorder(device, options);
  }
  return std::make_unique<Recorder>(options);
}

}  // namespace tessera
