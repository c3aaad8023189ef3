#ifndef TRAINERS_RUN_PLAN_H_
#define TRAINERS_RUN_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention_backends/backend_table.h"
#include "framework/base/phase_observer.h"
#include "framework/cuda/device.h"
#include "framework/dist/world.h"
#include "framework/observe/memory_report.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "models/model_shape.h"
#include "models/transformer_lm.h"
#include "trainers/run_config.pb.h"

namespace tessera {

// What follows from a config on this machine, decided before anything is
// allocated: `--dry_run` prints it, every program builds from it.
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
  MemoryReport memory;  // predicted, of this rank's device
  // Floating-point operations of the model for one token, forward and
  // backward (framework/observe/flops.h).
  double flops_per_token = 0;

  // False where model.frozen covers everything: such a plan only generates.
  bool trains() const { return attention.needs_grad; }
  int64_t tokens_per_step() const {
    return config.training().batch_size() * shape.context;
  }
};

// `config` has passed LoadRunConfig(). FailedPrecondition for a device that is
// not there; InvalidArgument for a batch that the ranks cannot share, a
// precision that the device does not support or a pattern of model.frozen that
// matches no parameter; Unimplemented for a backend that does not support the
// problem; ResourceExhausted for a plan larger than the device's memory, with
// what would fit.
absl::StatusOr<RunPlan> PlanRun(const RunConfig& config,
                                const WorldInfo& world);

// What the plan's memory depends on, for messages about it.
MemoryChoices MemoryChoicesOf(const RunPlan& plan);

// `status`, or where it is an out-of-memory the same with what asked for
// memory, the plan by category and the config fields that would help.
absl::Status ExplainOutOfMemory(const RunPlan& plan, absl::Status status);

struct BuiltModel {
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<TransformerLm> model;
};

// Allocates and initialises the parameters and makes the model over them.
// `phases` may be null and outlives the model.
absl::StatusOr<BuiltModel> BuildModel(const RunPlan& plan,
                                      PhaseObserver* phases);

}  // namespace tessera

#endif  // TRAINERS_RUN_PLAN_H_
