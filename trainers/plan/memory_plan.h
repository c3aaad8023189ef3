#ifndef TRAINERS_PLAN_MEMORY_PLAN_H_
#define TRAINERS_PLAN_MEMORY_PLAN_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory_report.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "framework/program/lifetime.h"
#include "framework/program/memory.h"
#include "framework/program/schedule.h"
#include "trainers/plan/step_plan.h"

namespace tessera {

// A device at the moment of the step at which it is fullest.
struct PlannedMemory {
  MemoryReport report;
  std::string peak;  // what runs: "the backward of block_0/ffn/w13"
  // What the step holds then, by kind of op.
  std::map<std::string, LiveBytes> by_kind;
};

// Bytes before anything is allocated: of the parameters' flat buffers, the
// optimizer's moments, the tables and the batch, and of what the step holds at
// its fullest, in blocks as LibTorch's allocator hands them out.
absl::StatusOr<PlannedMemory> PlanTrainingMemory(
    const StepPlan& step, const PrecisionPolicy& precision,
    const DeviceInfo& device);
// The same for programs that only run forward.
absl::StatusOr<PlannedMemory> PlanForwardMemory(
    const Schedule& schedule, const PrecisionPolicy& precision,
    const DeviceInfo& device);

}  // namespace tessera

#endif  // TRAINERS_PLAN_MEMORY_PLAN_H_
