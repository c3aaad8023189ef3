#include "framework/observe/memory/memory_recorder.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory/allocation_log.h"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using allocator::TraceEntry;

class Recorder;
ABSL_CONST_INIT absl::Mutex current_mutex(absl::kConstInit);
Recorder* current_recorder ABSL_GUARDED_BY(current_mutex) = nullptr;

class Recorder : public MemoryRecorder, public PhaseObserver {
 public:
  explicit Recorder(c10::Device device) : device_(device) {
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

  void Own(MemoryCategory category, const void* address) override {
    const absl::MutexLock lock(&mutex_);
    log_.Own(category, reinterpret_cast<uint64_t>(address));
  }

  PhaseObserver* phases() override { return this; }

  absl::Status AddTo(StepRecord* record) override {
    const int64_t outside =
        BytesInUse(device_) - CurrentMemory(device_).reserved;
    const absl::MutexLock lock(&mutex_);
    record->memory = log_.Report(/*with_timeline=*/!has_timeline_);
    record->memory->outside = outside;
    has_timeline_ = true;
    return absl::OkStatus();
  }

  void BeginStep(int64_t step) override {
    Update([&](AllocationLog& log) { log.BeginStep(step); });
  }
  void EndStep() override {
    Update([](AllocationLog& log) { log.EndStep(); });
  }
  void Begin(absl::string_view segment) override {
    Update([&](AllocationLog& log) { log.Begin(segment); });
  }
  void End() override {
    Update([](AllocationLog& log) { log.End(); });
  }
  void BeginOp(absl::string_view name) override {
    Update([&](AllocationLog& log) { log.BeginOp(name); });
  }
  void EndOp() override {
    Update([](AllocationLog& log) { log.EndOp(); });
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

  // Runs `change` on the log, after a sample of the allocator's count.
  template <typename Change>
  void Update(Change change) {
    const MemoryUse use = CurrentMemory(device_);
    const absl::MutexLock lock(&mutex_);
    log_.Sample(use.allocated, use.reserved);
    change(log_);
  }

  const c10::Device device_;
  bool has_timeline_ = false;  // a record had one
  // Never held while the allocator is called.
  absl::Mutex mutex_;
  AllocationLog log_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<MemoryRecorder> CreateMemoryRecorder(c10::Device device) {
  return std::make_unique<Recorder>(device);
}

}  // namespace tessera
