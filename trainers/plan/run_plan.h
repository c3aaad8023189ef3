#ifndef TRAINERS_PLAN_RUN_PLAN_H_
#define TRAINERS_PLAN_RUN_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention_backends/backend_table.h"
#include "framework/cuda/device.h"
#include "framework/cuda/device_spec.h"
#include "framework/dist/world.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "models/model_shape.h"
#include "models/transformer_lm.h"
#include "trainers/config/run_config.pb.h"
#include "trainers/plan/memory_plan.h"
#include "trainers/plan/step_plan.h"

namespace tessera {

// What follows from a config on a device, decided before anything is allocated:
// `--dry_run` prints it, every program builds from it.
struct RunPlan {
  RunConfig config;
  WorldInfo world;
  DeviceInfo device;
  PrecisionPolicy precision;
  ModelShape shape;
  std::vector<ParameterBlockSpec> parameters;  // in execution order
  int64_t num_parameters = 0;
  int64_t micro_batch = 0;     // sequences of one rank's micro-batch
  AttentionProblem attention;  // of such a micro-batch
  BackendChoice backend;
  std::shared_ptr<const StepPlan> step;  // null where nothing is trained
  PlannedMemory memory;                  // of this rank's device at its fullest
  // ModelFlopsPerToken(); 0 where nothing is trained.
  double flops_per_token = 0;

  int64_t tokens_per_step() const {
    return config.training().batch_size() * shape.context;
  }
};

// Plans a training run. `config` has passed LoadRunConfig(). `planned_device`
// stands for a device that need not be there; without it the config's is
// opened. FailedPrecondition for a device that is not there; InvalidArgument
// for a batch that the ranks cannot share, a precision that the device does not
// support, a pattern of model.frozen that matches no parameter, or patterns
// that leave nothing to train; Unimplemented for a backend that does not
// support the problem; ResourceExhausted for a plan larger than the device's
// memory, with what would fit.
absl::StatusOr<RunPlan> PlanRun(
    const RunConfig& config, const WorldInfo& world,
    const std::optional<DeviceInfo>& planned_device = std::nullopt);

// Plans a program that only continues sequences, one at a time, with the model
// of `config`. What speaks of training in it is ignored.
absl::StatusOr<RunPlan> PlanGeneration(const RunConfig& config);

// How the matrix products of a policy are computed.
ProductKind ProductKindOf(const PrecisionPolicy& precision);

// What the model's programs are built for.
ProgramTarget TargetOf(const RunPlan& plan);

// `status`, or where it is an out-of-memory the same with what asked for
// memory, the plan by category and the config fields that would help.
absl::Status ExplainOutOfMemory(const RunPlan& plan, absl::Status status);

// Allocates and initialises the parameters.
absl::StatusOr<std::unique_ptr<ParameterStore>> MakeParameters(
    const RunPlan& plan);

}  // namespace tessera

#endif  // TRAINERS_PLAN_RUN_PLAN_H_
