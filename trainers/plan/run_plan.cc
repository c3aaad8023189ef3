#include "trainers/plan/run_plan.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/attention_config.h"
#include "attention_backends/auto_order.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/cached_attention.h"
#include "framework/base/field_error.h"
#include "framework/base/round_up.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/mesh/layout_config.h"
#include "framework/observe/format.h"
#include "framework/optim/optimizer_config.h"
#include "framework/precision/precision_config.h"
#include "google/protobuf/text_format.h"
#include "models/model_config.h"
#include "trainers/config/run_config.h"
#include "trainers/plan/memory_plan.h"
#include "trainers/plan/out_of_memory_error.h"

namespace tessera {
namespace {

// A multiple of this is the length of a program that generates.
constexpr int64_t kLeastLength = 64;

absl::StatusOr<DeviceInfo> OpenDevice(const TrainingConfig& training,
                                      const WorldInfo& world) {
  if (training.device() == TrainingConfig::CUDA) {
    absl::StatusOr<DeviceInfo> gpu =
        OpenCudaDevice(CudaDeviceIndex(world, VisibleCudaDevices()));
    if (!gpu.ok()) return FieldError("training.device", gpu.status());
    return gpu;
  }
  return CpuDevice();
}

// The number of sequences in one rank's micro-batch.
absl::StatusOr<int64_t> MicroBatchSize(const TrainingConfig& training,
                                       const Layout& layout) {
  const int64_t parts =
      int64_t{layout.data_ranks()} * int64_t{training.micro_batches()};
  if (training.batch_size() % parts != 0) {
    return FieldError(
        "training.batch_size",
        absl::InvalidArgumentError(absl::StrCat(
            "is ", training.batch_size(), ", but must be a multiple of ", parts,
            ": ", layout.data_ranks(), " ranks with training.micro_batches ",
            training.micro_batches())));
  }
  return training.batch_size() / parts;
}

// If the run's backend stores attention scores: the fastest backend that
// supports the run and stores none. Otherwise empty.
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

// What would help a run that needs too much memory.
std::vector<std::string> AdviceFor(const RunPlan& plan) {
  const RunConfig& config = plan.config;
  // Two micro-batches may need FP32 gradients, for one.
  const auto helps = [&](const std::string& fields) {
    RunConfig other = config;
    if (!google::protobuf::TextFormat::MergeFromString(fields, &other)) {
      return false;
    }
    const absl::StatusOr<RunPlan> leaner =
        PlanWithoutFit(other, plan.world, plan.device);
    return leaner.ok() &&
           leaner->memory.report.total() < plan.memory.report.total();
  };
  return MemoryAdvice(
      plan.memory.report,
      {.batch_size = config.training().batch_size(),
       .micro_batches = config.training().micro_batches(),
       .layout = plan.layout,
       .context = plan.shape.context,
       .precision = std::string(plan.precision.name()),
       .recompute = RecomputeConfig::Policy_Name(config.recompute().policy()),
       .attention = std::string(plan.backend.backend->name()),
       .leaner_attention = LeanerAttention(plan)},
      helps);
}

bool FitsItsDevice(const RunPlan& plan) {
  const MemoryReport& memory = plan.memory.report;
  return !memory.capacity.has_value() || memory.total() <= *memory.capacity;
}

// What would help a generation that needs too much memory.
std::vector<std::string> GenerationAdvice(const RunPlan& plan) {
  const MemoryReport& memory = plan.memory.report;
  std::vector<std::string> advice;
  if (memory.parameters + memory.shadow < *memory.capacity) {
    advice.push_back(
        "a smaller --max_tokens or --samples, or a shorter prompt");
  }
  const PrecisionConfig::Mode mode = plan.config.precision().mode();
  if (mode == PrecisionConfig::FP32 || mode == PrecisionConfig::TF32) {
    advice.push_back(
        "keys, values and most weights of half the size: --precision=BF16");
  }
  if (plan.device.is_cuda()) advice.push_back("the CPU: --device=CPU");
  if (advice.empty()) advice.push_back("a machine with more memory");
  return advice;
}

// "needs about 90 GiB, but NVIDIA H100 has 79 GiB".
std::string NeedOf(const RunPlan& plan) {
  const MemoryReport& memory = plan.memory.report;
  return absl::StrCat("needs about ", FormatBytes(memory.total()), ", but ",
                      plan.device.name, " has ", FormatBytes(*memory.capacity));
}

// The part of the plan that training and generation share.
absl::StatusOr<RunPlan> BeginPlan(
    const RunConfig& config, const WorldInfo& world,
    const std::optional<DeviceInfo>& planned_device) {
  RunPlan plan;
  plan.config = config;
  plan.world = world;
  ASSIGN_OR_RETURN(plan.layout, MakeLayout(LayoutOptionsOf(config.layout()),
                                           world.world_size, world.rank));
  if (planned_device.has_value()) {
    plan.device = *planned_device;
  } else {
    ASSIGN_OR_RETURN(plan.device, OpenDevice(config.training(), world));
  }
  ASSIGN_OR_RETURN(plan.precision,
                   CreatePrecisionPolicy(config.precision(),
                                         config.training().micro_batches(),
                                         plan.device.is_cuda()));
  plan.shape = ModelShapeOf(config.model());
  plan.products = std::make_shared<ProductChoices>();
  return plan;
}

absl::Status ChooseBackend(int64_t batch, int64_t sequence, bool needs_grad,
                           RunPlan* plan) {
  plan->attention = AttentionProblemOf(plan->shape, batch, sequence, needs_grad,
                                       TargetOf(*plan));
  // A text that is generated is one document.
  plan->attention.documents =
      needs_grad && plan->config.data().documents() == DataConfig::SEPARATE;
  absl::StatusOr<BackendChoice> backend = SelectBackend(
      BackendRequestOf(plan->config.attention()), plan->attention);
  if (!backend.ok()) return FieldError("attention.backend", backend.status());
  plan->backend = *std::move(backend);
  return absl::OkStatus();
}

// What execution.mode: AUTO must not hide in a CUDA graph; empty if nothing.
std::string WhyEager(const RunConfig& config) {
  const ObserveConfig& observe = config.observe();
  if (observe.nvtx()) return "observe.nvtx shows what the host does";
  if (observe.memory()) return "observe.memory shows each tensor";
  if (observe.has_memory_snapshot_step()) {
    return "observe.memory_snapshot_step shows each tensor";
  }
  if (config.execution().storage() == ExecutionConfig::ALLOCATOR) {
    return "execution.storage is ALLOCATOR";
  }
  return "";
}

ExecutionConfig ExecutionOf(const RunConfig& config) {
  ExecutionConfig execution = config.execution();
  // The times of blocks leave out what runs beside the main stream.
  if (config.observe().block_phases()) KeepPhasesApart(&execution);
  return execution;
}

absl::Status CheckObservers(const RunPlan& plan) {
  if (plan.config.observe().nvtx() && !kCudaBuild) {
    return FieldError(
        "observe.nvtx",
        absl::UnimplementedError("this build has no NVTX; remove it, or build "
                                 "with --config=cuda"));
  }
  if (!plan.config.observe().trace().kernel_counters()) return absl::OkStatus();
  const char* why = !plan.device.is_cuda() ? "a GPU"
                    : plan.world.world_size > 1
                        ? "a single rank, because kernels are counted one by "
                          "one and would wait for other ranks"
                        : nullptr;
  if (why == nullptr) return absl::OkStatus();
  return FieldError(
      "observe.trace.kernel_counters",
      absl::InvalidArgumentError(absl::StrCat("needs ", why, "; remove it")));
}

LmOptions LmOptionsOf(const RunPlan& plan) {
  return {.shape = plan.shape,
          .batch = plan.attention.b,
          .sequence = plan.attention.s,
          .backend = plan.backend.backend,
          .attention = plan.attention,
          .objective = ObjectiveOf(plan.config.training())};
}

void SetParameters(std::vector<ParameterBlockSpec> parameters, RunPlan* plan) {
  plan->parameters = std::move(parameters);
  plan->num_parameters = CountParameters(plan->parameters);
}

void SetMemory(PlannedMemory planned, RunPlan* plan) {
  plan->memory = std::move(planned);
  // The ranks of a machine without GPUs share its memory.
  plan->memory.report.capacity =
      plan->device.total_bytes /
      (plan->device.is_cuda() ? 1 : std::max(1, plan->world.local_world_size));
}

// How the data ranks share the state, and what moves it between them.
Sharding ShardingOf(const RunPlan& plan) {
  Sharding sharding = plan.layout.sharding();
  // Neighbouring ranks divide the state. All ranks decide alike: each machine
  // has whole groups of them, the first of which begins with its first rank.
  const WorldInfo& world = plan.world;
  sharding.copy_engines =
      plan.device.is_cuda() && sharding.shards > 1 &&
      world.local_world_size % sharding.shards == 0 &&
      (world.rank - world.local_rank) % sharding.shards == 0;
  return sharding;
}

}  // namespace

void KeepPhasesApart(ExecutionConfig* execution) {
  if (!execution->has_defer_update()) execution->set_defer_update(false);
  if (!execution->has_overlap_weight_gradients()) {
    execution->set_overlap_weight_gradients(false);
  }
  if (!execution->has_reduce_early()) execution->set_reduce_early(false);
}

std::string DescribeExecution(const RunPlan& plan) {
  const bool chosen = plan.config.execution().mode() == ExecutionConfig::AUTO;
  const StepPlan& step = *plan.step;
  std::string text = step.graph ? "GRAPH" : "EAGER";
  if (!chosen) {
    absl::StrAppend(&text, " (as configured)");
  } else if (step.eager_because.empty()) {
    absl::StrAppend(&text, " (chosen by AUTO)");
  } else {
    absl::StrAppend(&text, " (chosen by AUTO: ", step.eager_because, ")");
  }
  const bool overlaps = absl::c_any_of(step.train.runs, [](const StepRun& run) {
    return run.stream == StepStream::kWeightGradients;
  });
  if (overlaps) absl::StrAppend(&text, ", overlapped weight gradients");
  if (step.train.starts_pending) absl::StrAppend(&text, ", deferred update");
  if (step.graph && plan.config.observe().nvtx()) {
    absl::StrAppend(&text, ", NVTX ranges around whole steps only");
  }
  return text;
}

ProductKind ProductKindOf(const PrecisionPolicy& precision) {
  if (c10::elementSize(precision[OpClass::kMatmul]) == 2) {
    return ProductKind::kHalf;
  }
  return precision.allows_tf32() ? ProductKind::kTf32 : ProductKind::kFp32;
}

ProgramTarget TargetOf(const RunPlan& plan) {
  const auto& frozen = plan.config.model().frozen();
  return {.device = plan.device,
          .precision = plan.precision,
          .deterministic = plan.config.training().deterministic(),
          .products = plan.products,
          .frozen = {frozen.begin(), frozen.end()},
          .muon = MuonPatternsOf(plan.config.optimizer()),
          .muon_row_moments =
              MuonOptionsOf(plan.config.optimizer()).normalizes_rows};
}

absl::Status CheckFits(const RunPlan& plan) {
  if (FitsItsDevice(plan)) return absl::OkStatus();
  return OutOfMemoryError(absl::StrCat("this run ", NeedOf(plan)),
                          plan.memory.report, AdviceFor(plan));
}

absl::StatusOr<RunPlan> PlanRun(
    const RunConfig& config, const WorldInfo& world,
    const std::optional<DeviceInfo>& planned_device) {
  ASSIGN_OR_RETURN(RunPlan plan, PlanWithoutFit(config, world, planned_device));
  RETURN_IF_ERROR(CheckFits(plan));
  RETURN_IF_ERROR(VerifyStep(*plan.step));
  return plan;
}

absl::StatusOr<RunPlan> PlanWithoutFit(
    const RunConfig& config, const WorldInfo& world,
    const std::optional<DeviceInfo>& planned_device) {
  const TrainingConfig& training = config.training();
  ASSIGN_OR_RETURN(RunPlan plan, BeginPlan(config, world, planned_device));
  RETURN_IF_ERROR(CheckObservers(plan));
  ASSIGN_OR_RETURN(plan.micro_batch, MicroBatchSize(training, plan.layout));
  RETURN_IF_ERROR(ChooseBackend(plan.micro_batch, plan.shape.context,
                                /*needs_grad=*/true, &plan));
  ASSIGN_OR_RETURN(plan.step,
                   PlanStep({.lm = LmOptionsOf(plan),
                             .micro_batches = training.micro_batches(),
                             .sharding = ShardingOf(plan),
                             .muon = MuonOptionsOf(config.optimizer()),
                             .ema = config.optimizer().has_ema(),
                             .recompute = config.recompute(),
                             .execution = ExecutionOf(config),
                             .eager_because = WhyEager(config)},
                            TargetOf(plan)));
  SetParameters(plan.step->loss.program.parameters(), &plan);
  if (std::none_of(plan.parameters.begin(), plan.parameters.end(),
                   [](const auto& block) { return block.trainable; })) {
    return FieldError("model.frozen",
                      absl::InvalidArgumentError(
                          "leaves nothing to train: its patterns match every "
                          "parameter; remove or narrow one of them"));
  }
  plan.flops_per_token = ModelFlopsPerToken(*plan.step);
  ASSIGN_OR_RETURN(PlannedMemory memory,
                   PlanTrainingMemory(*plan.step, plan.precision, plan.device,
                                      training.eval_batches() > 0));
  SetMemory(std::move(memory), &plan);
  return plan;
}

int64_t PaddedLength(int64_t tokens, int64_t context) {
  return std::min(RoundUp(tokens, kLeastLength), context);
}

int64_t CacheRows(int64_t tokens, int64_t context, const DeviceInfo& device) {
  int64_t multiple = kLeastLength;
  while (device.is_cuda() && multiple < std::min<int64_t>(tokens, 1024)) {
    multiple *= 2;
  }
  return std::min(RoundUp(tokens, multiple), context);
}

absl::StatusOr<RunPlan> PlanGeneration(const RunConfig& trained,
                                       const GenerationSize& size) {
  RunConfig config = trained;
  config.mutable_model()->clear_frozen();
  config.mutable_model()->add_frozen(std::string("*"));  // no gradients
  config.clear_optimizer();
  config.mutable_training()->set_batch_size(1);
  config.mutable_training()->set_micro_batches(1);
  config.mutable_training()->set_deterministic(false);
  config.clear_attention();
  config.clear_recompute();
  config.clear_layout();
  ASSIGN_OR_RETURN(RunPlan plan, BeginPlan(config, WorldInfo(), std::nullopt));
  plan.micro_batch = size.texts;
  // All of a text is computed at once as a prompt, and beyond the context.
  const int64_t context = plan.shape.context;
  const int64_t filled =
      PaddedLength(size.tokens > context ? context : size.prompt, context);
  RETURN_IF_ERROR(
      ChooseBackend(size.texts, filled, /*needs_grad=*/false, &plan));
  ASSIGN_OR_RETURN(const NextTokenProgram next,
                   BuildNextTokenProgram(LmOptionsOf(plan), TargetOf(plan),
                                         CacheUse::kFill));
  SetParameters(next.program.parameters(), &plan);
  const int64_t more_rows =
      CacheRows(size.tokens, context, plan.device) - filled;
  const int64_t grown = CacheType(more_rows, plan.attention).bytes();
  ASSIGN_OR_RETURN(
      PlannedMemory memory,
      PlanForwardMemory(ForwardSchedule(next.program), plan.precision,
                        plan.device, grown * plan.shape.layers));
  SetMemory(std::move(memory), &plan);
  if (FitsItsDevice(plan)) return plan;
  return OutOfMemoryError(
      absl::StrCat("generating ", FormatCountOf(size.texts, "text"), " of ",
                   size.tokens, " tokens, prompt included, ", NeedOf(plan)),
      plan.memory.report, GenerationAdvice(plan));
}

absl::Status ExplainOutOfMemory(const RunPlan& plan, absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return OutOfMemoryError(status.message(), plan.memory.report,
                          AdviceFor(plan));
}

absl::StatusOr<std::unique_ptr<ParameterStore>> MakeParameters(
    const RunPlan& plan) {
  WeightDtypes weights = WeightDtypesOf(plan.precision);
  weights.read_only = plan.step == nullptr;
  return ParameterStore::Create(
      plan.parameters,
      {.device = plan.device.device,
       .weights = weights,
       .gradient = plan.precision[OpClass::kGradient],
       .seed = static_cast<uint64_t>(plan.config.training().seed()),
       .sharding = ShardingOf(plan)});
}

}  // namespace tessera
