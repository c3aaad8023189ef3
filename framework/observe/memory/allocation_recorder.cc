#include "framework/observe/memory/allocation_recorder.h"

namespace tessera {

absl::Status AllocationRecorder::AddTo(StepRecord* record) {
  const int64_t outside = Outside();
  const absl::MutexLock lock(&mutex_);
  record->memory =
      log_.Report({.with_timeline = options_.every_timeline || !has_timeline_,
                   .most_largest = options_.most_largest});
  record->memory->outside = outside;
  has_timeline_ = true;
  return absl::OkStatus();
}

void AllocationRecorder::Update(
    absl::FunctionRef<void(AllocationLog& log)> change) {
  const MemoryUse use = Count();
  const absl::MutexLock lock(&mutex_);
  log_.Sample(use.allocated, use.reserved);
  change(log_);
}

}  // namespace tessera
