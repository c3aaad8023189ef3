#include "trainers/run_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/auto_order.h"
#include "attention_backends/backend_table.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/observe/flops.h"
#include "framework/observe/format.h"
#include "trainers/memory_plan.h"

namespace tessera {
namespace {

absl::StatusOr<DeviceInfo> OpenDevice(const TrainingConfig& training,
                                      const WorldInfo& world) {
  if (training.device() == TrainingConfig::CUDA) {
    return OpenCudaDevice(CudaDeviceIndex(world, VisibleCudaDevices()));
  }
  return CpuDevice();
}

// Sequences of one rank's micro-batch.
absl::StatusOr<int64_t> MicroBatchSize(const TrainingConfig& training,
                                       const WorldInfo& world) {
  const int64_t parts =
      int64_t{world.world_size} * int64_t{training.micro_batches()};
  if (training.batch_size() % parts != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.batch_size is ", training.batch_size(), ", which ",
        world.world_size, " ranks with training.micro_batches ",
        training.micro_batches(), " cannot share: make it a multiple of ",
        parts));
  }
  return training.batch_size() / parts;
}

AttentionProblem ProblemOf(const RunPlan& plan) {
  return {.b = plan.micro_batch,
          .s = plan.shape.context,
          .t = plan.shape.context,
          .h = plan.shape.heads,
          .g = plan.shape.kv_heads,
          .d = plan.shape.head_dim(),
          .dtype = plan.precision[OpClass::kAttention],
          .mask = MaskKind::kCausal,
          .needs_grad =
              std::any_of(plan.parameters.begin(), plan.parameters.end(),
                          [](const auto& block) { return block.trainable; }),
          .deterministic = plan.config.training().deterministic(),
          .cuda = plan.device.is_cuda(),
          .compute_capability = plan.device.compute_capability};
}

FlopsShape FlopsShapeOf(const RunPlan& plan) {
  const ModelShape& m = plan.shape;
  FlopsShape flops = {.parameters = plan.num_parameters,
                      .embedding_parameters = m.vocab * m.d_model,
                      .tied_head = m.tied_head,
                      .layers = m.layers,
                      .attention_width = m.heads * m.head_dim(),
                      .context = m.context};
  const ParameterBlockSpec& embedding = plan.parameters.front();
  bool differentiates = embedding.trainable;  // something so far is trained
  const auto multiply = [&](const ParameterBlockSpec& block) {
    const int64_t count = CountParameters(block);
    if (!block.trainable) flops.frozen += count;
    if (!differentiates) flops.without_input_gradient += count;
    differentiates |= block.trainable;
  };
  for (size_t i = 1; i < plan.parameters.size(); ++i) {
    multiply(plan.parameters[i]);
    if (absl::EndsWith(plan.parameters[i].name, ".attn.qkv")) {
      flops.forward_only_layers += !differentiates;
    }
  }
  if (m.tied_head) multiply(embedding);
  return flops;
}

// Refuses a plan that cannot fit.
absl::Status CheckFits(const RunPlan& plan) {
  if (!plan.memory.capacity.has_value() ||
      plan.memory.total() <= *plan.memory.capacity) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(OutOfMemoryMessage(
      absl::StrCat("this run needs about ", FormatBytes(plan.memory.total()),
                   ", but ", plan.device.name, " has ",
                   FormatBytes(*plan.memory.capacity)),
      plan.memory, MemoryChoicesOf(plan)));
}

// The fastest backend that would run and holds no scores, where the run's own
// does; otherwise empty.
std::string LeanerAttention(const RunPlan& plan) {
  const AttentionProblem& p = plan.attention;
  const int64_t scores = p.b * p.h * p.s * p.t * c10::elementSize(p.dtype);
  const auto holds_scores = [&](const AttentionBackend* backend) {
    return backend->Plan(p).saved_bytes >= scores;
  };
  if (!holds_scores(plan.backend.backend)) return "";
  for (const AttentionBackend* backend :
       AutoOrderFor(p, AttentionBackends()).backends) {
    if (backend->Supports(p).ok() && !holds_scores(backend)) {
      return std::string(backend->name());
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<RunPlan> PlanRun(const RunConfig& config,
                                const WorldInfo& world) {
  RunPlan plan;
  plan.config = config;
  plan.world = world;
  ASSIGN_OR_RETURN(plan.device, OpenDevice(config.training(), world));
  ASSIGN_OR_RETURN(plan.precision,
                   PrecisionPolicy::Create(config.precision(),
                                           config.training().micro_batches(),
                                           plan.device.is_cuda()));
  plan.shape = ModelShape::FromConfig(config.model());
  ASSIGN_OR_RETURN(plan.parameters, TransformerParameters(plan.shape));
  plan.num_parameters = CountParameters(plan.shape);
  ASSIGN_OR_RETURN(plan.micro_batch, MicroBatchSize(config.training(), world));
  plan.attention = ProblemOf(plan);
  ASSIGN_OR_RETURN(plan.backend,
                   SelectBackend(config.attention(), plan.attention));
  plan.memory =
      PlanMemory({.shape = plan.shape,
                  .parameters = plan.parameters,
                  .precision = &plan.precision,
                  .backend = plan.backend.backend,
                  .attention = plan.attention,
                  .recompute = config.recompute(),
                  .micro_batches = config.training().micro_batches()});
  // The ranks of a machine without GPUs share its memory.
  plan.memory.capacity =
      plan.device.total_bytes /
      (plan.device.is_cuda() ? 1 : std::max(1, world.local_world_size));
  plan.flops_per_token = TrainingFlopsPerToken(FlopsShapeOf(plan));
  RETURN_IF_ERROR(CheckFits(plan));
  return plan;
}

MemoryChoices MemoryChoicesOf(const RunPlan& plan) {
  const RunConfig& config = plan.config;
  return {
      .batch_size = config.training().batch_size(),
      .micro_batches = config.training().micro_batches(),
      .world_size = plan.world.world_size,
      .context = plan.shape.context,
      .precision = std::string(plan.precision.name()),
      .recompute = RecomputeConfig::Policy_Name(config.recompute().policy()),
      .attention = std::string(plan.backend.backend->name()),
      .leaner_attention = LeanerAttention(plan)};
}

absl::Status ExplainOutOfMemory(const RunPlan& plan, absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(
      OutOfMemoryMessage(status.message(), plan.memory, MemoryChoicesOf(plan)));
}

absl::StatusOr<BuiltModel> BuildModel(const RunPlan& plan,
                                      PhaseObserver* phases) {
  BuiltModel built;
  ASSIGN_OR_RETURN(
      built.parameters,
      ParameterStore::Create(
          plan.parameters,
          {.device = plan.device.device,
           .master = plan.precision[OpClass::kMasterWeights],
           .compute = plan.precision[OpClass::kWeights],
           .gradient = plan.precision[OpClass::kGradient],
           .seed = static_cast<uint64_t>(plan.config.training().seed())}));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    built.model = std::make_unique<TransformerLm>(
        BlockContext{.shape = plan.shape,
                     .precision = plan.precision,
                     .backend = plan.backend.backend,
                     .deterministic = plan.attention.deterministic,
                     .phases = phases},
        *built.parameters, plan.config.recompute());
  }));
  return built;
}

}  // namespace tessera
