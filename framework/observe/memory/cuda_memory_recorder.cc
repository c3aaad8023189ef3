#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory/allocation_recorder.h"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using allocator::TraceEntry;

class Recorder;
ABSL_CONST_INIT absl::Mutex current_mutex(absl::kConstInit);
Recorder* current_recorder ABSL_GUARDED_BY(current_mutex) = nullptr;

class Recorder : public AllocationRecorder {
 public:
  Recorder(c10::Device device, const MemoryRecorderOptions& options)
      : AllocationRecorder(options), device_(device) {
    // LibTorch does not detach a tracker, so there is one, which forwards.
    [[maybe_unused]] static const bool attached = [] {
      allocator::attachAllocatorTraceTracker(&Recorder::Forward);
      return true;
    }();
    AddExisting();
    const absl::MutexLock lock(&current_mutex);
    current_recorder = this;
  }

  ~Recorder() override {
    const absl::MutexLock lock(&current_mutex);
    current_recorder = nullptr;
  }

  void Own(MemoryCategory category, const at::Tensor& buffer) override {
    const absl::MutexLock lock(&mutex_);
    log_.Own(category, reinterpret_cast<uint64_t>(buffer.const_data_ptr()));
  }

 protected:
  MemoryUse Count() override { return CurrentMemory(device_); }
  int64_t Outside() override {
    return BytesInUse(device_) - CurrentMemory(device_).reserved;
  }

 private:
  // The tracker: under the allocator's lock, so it must not call the allocator,
  // nor wait for a thread that does.
  static void Forward(const TraceEntry& entry) {
    if (entry.action_ != TraceEntry::ALLOC &&
        entry.action_ != TraceEntry::FREE_REQUESTED) {
      return;
    }
    const absl::MutexLock lock(&current_mutex);
    if (current_recorder != nullptr &&
        entry.device_ == current_recorder->device_.index()) {
      current_recorder->Record(entry);
    }
  }

  void Record(const TraceEntry& entry) {
    const absl::MutexLock lock(&mutex_);
    if (entry.action_ == TraceEntry::ALLOC) {
      log_.Allocate(entry.addr_, static_cast<int64_t>(entry.size_));
    } else {
      log_.Free(entry.addr_);
    }
  }

  void AddExisting() {
    const allocator::SnapshotInfo snapshot =
        allocator::snapshot({0, 0}, /*include_traces=*/false);
    const absl::MutexLock lock(&mutex_);
    for (const allocator::SegmentInfo& segment : snapshot.segments) {
      if (segment.device != device_.index()) continue;
      uint64_t address = segment.address;
      for (const allocator::BlockInfo& block : segment.blocks) {
        if (block.allocated) {
          log_.Allocate(address, static_cast<int64_t>(block.requested_size));
        }
        address += block.size;
      }
    }
  }

  const c10::Device device_;
};

}  // namespace

std::unique_ptr<MemoryRecorder> CreateCudaMemoryRecorder(
    c10::Device device, const MemoryRecorderOptions& options) {
  return std::make_unique<Recorder>(device, options);
}

}  // namespace tessera
