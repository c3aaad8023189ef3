#ifndef FRAMEWORK_OBSERVE_MEMORY_ALLOCATION_RECORDER_H_
#define FRAMEWORK_OBSERVE_MEMORY_ALLOCATION_RECORDER_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory/allocation_log.h"
#include "framework/observe/memory/memory_recorder.h"

namespace tessera {

// What the recorders of all devices share: a log that follows the phases.
// Subclasses feed it with the allocations of their device.
class AllocationRecorder : public MemoryRecorder, public PhaseObserver {
 public:
  explicit AllocationRecorder(const MemoryRecorderOptions& options)
      : options_(options) {}

  PhaseObserver* phases() override { return this; }
  absl::Status AddTo(StepRecord* record) override;

  void BeginStep(int64_t step) noexcept override {
    Update([&](AllocationLog& log) { log.BeginStep(step); });
  }
  void EndStep() noexcept override {
    Update([](AllocationLog& log) { log.EndStep(); });
  }
  void Begin(absl::string_view segment) noexcept override {
    Update([&](AllocationLog& log) { log.Begin(segment); });
  }
  void End() noexcept override {
    Update([](AllocationLog& log) { log.End(); });
  }
  void BeginOp(absl::string_view name, OpResults results) noexcept override {
    Update([&](AllocationLog& log) { log.BeginOp(name, results); });
  }
  void EndOp() noexcept override {
    Update([](AllocationLog& log) { log.EndOp(); });
  }

 protected:
  // What the allocator itself counts now; called without the lock.
  virtual MemoryUse Count() = 0;
  // MemoryRecord::outside.
  virtual int64_t Outside() { return 0; }

  // Never held while the allocator is called.
  absl::Mutex mutex_;
  AllocationLog log_ ABSL_GUARDED_BY(mutex_);

 private:
  // Runs `change` on the log, after a sample of the allocator's count.
  void Update(absl::FunctionRef<void(AllocationLog& log)> change);

  const MemoryRecorderOptions options_;
  bool has_timeline_ = false;  // a record had one
};

// Only CUDA builds have it.
std::unique_ptr<MemoryRecorder> CreateCudaMemoryRecorder(
    c10::Device device, const MemoryRecorderOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_ALLOCATION_RECORDER_H_
