#include "framework/observe/memory/allocation_recorder.h"

namespace tessera {

absl::Status AllocationRecorder::AddTo(StepRecord* record) {
  const int64_t outside = Outside();
  const absl::MutexLock lock(&mutex_);
  record->memory = log_.Report(
      {.with_timeline = !has_timeline_, .most_largest = options_.most_largest});
  record->memory->outside = outside;
  has_timeline_ = true;
  return absl::OkStatus();
}

void AllocationRecorder::BeginStep(int64_t step) noexcept {
  Update([&](AllocationLog& log) { log.BeginStep(step); });
}

void AllocationRecorder::EndStep() noexcept {
  Update([](AllocationLog& log) { log.EndStep(); });
}

void AllocationRecorder::Begin(absl::string_view segment) noexcept {
  Update([&](AllocationLog& log) { log.Begin(segment); });
}

void AllocationRecorder::End() noexcept {
  Update([](AllocationLog& log) { log.End(); });
}

void AllocationRecorder::BeginOp(absl::string_view name,
                                 OpResults results) noexcept {
  Update([&](AllocationLog& log) { log.BeginOp(name, results); });
}

void AllocationRecorder::EndOp() noexcept {
  Update([](AllocationLog& log) { log.EndOp(); });
}

void AllocationRecorder::Update(
    absl::FunctionRef<void(AllocationLog& log)> change) {
  const MemoryUse use = Count();
  const absl::MutexLock lock(&mutex_);
  log_.Sample(use.allocated, use.reserved);
  change(log_);
}

}  // namespace tessera
