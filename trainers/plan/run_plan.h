#ifndef TRAINERS_PLAN_RUN_PLAN_H_
#define TRAINERS_PLAN_RUN_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention_backends/select_backend.h"
#include "framework/cuda/device.h"
#include "framework/cuda/device_spec.h"
#include "framework/dist/world.h"
#include "framework/mesh/layout.h"
#include "framework/ops/linear/product_choices.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "models/model_shape.h"
#include "models/transformer_lm.h"
#include "trainers/config/run_config.pb.h"
#include "trainers/plan/memory_plan.h"
#include "trainers/plan/step_plan.h"

namespace tessera {

// Everything that follows from a config on a device, decided before anything is
// allocated. `--dry_run` prints it, and every program is built from it.
struct RunPlan {
  RunConfig config;
  WorldInfo world;
  Layout layout;  // what this rank has of the work and the state
  DeviceInfo device;
  PrecisionPolicy precision;
  ModelShape shape;
  std::vector<ParameterBlockSpec> parameters;  // in execution order
  int64_t num_parameters = 0;
  int64_t micro_batch = 0;     // sequences in one rank's micro-batch
  AttentionProblem attention;  // of one micro-batch
  BackendChoice backend;
  // The algorithms of the programs' matrix products, which a Session chooses.
  std::shared_ptr<ProductChoices> products;
  std::shared_ptr<const StepPlan> step;  // null without training
  PlannedMemory memory;                  // peak of this rank's device
  // ModelFlopsPerToken(); 0 without training.
  double flops_per_token = 0;

  // Whether this process writes the run's files and log.
  bool is_writer() const { return layout.is_writer() || world.simulated; }
  int64_t tokens_per_step() const {
    return config.training().batch_size() * shape.context;
  }
};

// Plans a training run. `config` comes from LoadRunConfig(). `planned_device`
// describes a device that need not exist; without it, the config's is opened.
// Errors:
//   FailedPrecondition   the device does not exist
//   InvalidArgument      a layout that does not fit the number of ranks, a
//                        batch that cannot be divided among the ranks, a
//                        precision that the device does not support, a pattern
//                        of model.frozen that matches no parameter, or patterns
//                        that leave nothing to train
//   Unimplemented        the attention backend does not support the problem
//   ResourceExhausted    the plan exceeds the device's memory; says what helps
absl::StatusOr<RunPlan> PlanRun(
    const RunConfig& config, const WorldInfo& world,
    const std::optional<DeviceInfo>& planned_device = std::nullopt);
// PlanRun() also for a run that does not fit.
absl::StatusOr<RunPlan> PlanWithoutFit(
    const RunConfig& config, const WorldInfo& world,
    const std::optional<DeviceInfo>& planned_device = std::nullopt);
// ResourceExhausted as from PlanRun() if the plan exceeds the device's memory.
absl::Status CheckFits(const RunPlan& plan);

// What is generated: `texts` at a time, each of at most `tokens`, of which the
// first `prompt` are given.
struct GenerationSize {
  int64_t prompt = 1, tokens = 1, texts = 1;
};
// Plans a program that generates from the model of `config`. Ignores the
// config's training fields. ResourceExhausted if it exceeds the device's
// memory.
absl::StatusOr<RunPlan> PlanGeneration(const RunConfig& config,
                                       const GenerationSize& size);

// The length of the program that computes a text of `tokens` tokens, or its
// latest ones: a multiple of 64 up to the context, because attention backends
// compile, tune and reject per length.
int64_t PaddedLength(int64_t tokens, int64_t context);
// The rows of the caches of a text of `tokens` tokens, and the length of the
// program that extends it by one, up to the context. On a GPU, where each
// length is a CUDA graph of its own, whose time follows from the text's length,
// they are few: 64, 128, 256, 512, and multiples of 1,024.
int64_t CacheRows(int64_t tokens, int64_t context, const DeviceInfo& device);

// Leaves all work of a step in its own phase, on the main stream, unless a
// field of `execution` that is set says otherwise.
void KeepPhasesApart(ExecutionConfig* execution);

// "GRAPH (chosen by AUTO), deferred update".
std::string DescribeExecution(const RunPlan& plan);

// How a policy's matrix products are computed.
ProductKind ProductKindOf(const PrecisionPolicy& precision);

// The target that the model's programs are built for.
ProgramTarget TargetOf(const RunPlan& plan);

// Explains an out-of-memory `status`: adds what requested memory, the plan by
// category and the config fields that would help. Returns any other status
// unchanged.
absl::Status ExplainOutOfMemory(const RunPlan& plan, absl::Status status);

// Allocates the parameters; those of training get their initial values.
absl::StatusOr<std::unique_ptr<ParameterStore>> MakeParameters(
    const RunPlan& plan);

}  // namespace tessera

#endif  // TRAINERS_PLAN_RUN_PLAN_H_
