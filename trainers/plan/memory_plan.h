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

// The memory of a device at the peak of a step.
struct PlannedMemory {
  MemoryReport report;
  std::string peak;  // the op at the peak: "the backward of block_0/ffn/w13"
  // The step's live tensors at the peak, by kind of op.
  std::map<std::string, LiveBytes> by_kind;
};

// The dtypes in which a store keeps weights under `precision`.
WeightDtypes WeightDtypesOf(const PrecisionPolicy& precision);

// Plans the memory of training before anything is allocated: the parameters'
// flat buffers, the optimizer's moments and average, tables, the batch, and the
// peak of the step's tensors. On a GPU it also replays the requests of two
// steps, and of an evaluation if `evaluates`, on LibTorch's caching allocator,
// for what rounding and fragmentation add; those of a graph in a pool of their
// own. Sets everything in the report except the capacity.
absl::StatusOr<PlannedMemory> PlanTrainingMemory(
    const StepPlan& step, const PrecisionPolicy& precision,
    const DeviceInfo& device, bool evaluates);
// PlanTrainingMemory() for programs that only run forward, over read_only
// weights. `more_bytes` are taken beside the program.
absl::StatusOr<PlannedMemory> PlanForwardMemory(
    const Schedule& schedule, const PrecisionPolicy& precision,
    const DeviceInfo& device, int64_t more_bytes);

}  // namespace tessera

#endif  // TRAINERS_PLAN_MEMORY_PLAN_H_
