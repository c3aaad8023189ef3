#include "trainers/plan/step_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_op.h"
#include "framework/base/field_error.h"
#include "framework/base/name_pattern.h"
#include "framework/base/status_macros.h"
#include "framework/dist/reduce_tasks.h"
#include "framework/optim/optimizer_tasks.h"
#include "framework/program/rewrites/defer_update.h"
#include "framework/program/rewrites/fuse_ops.h"
#include "framework/program/rewrites/overlap_weight_gradients.h"
#include "framework/program/rewrites/recompute.h"
#include "framework/program/rewrites/reduce_early.h"
#include "framework/program/rewrites/shard.h"
#include "framework/program/rewrites/shard_gradients.h"
#include "framework/program/rewrites/shard_weights.h"
#include "framework/program/stream_order.h"
#include "framework/program/verify.h"

namespace tessera {
namespace {

// A pattern over the paths of the scopes that a policy drops.
std::string DroppedScopes(RecomputeConfig::Policy policy) {
  switch (policy) {
    case RecomputeConfig::BLOCK:
      return "block_*";
    case RecomputeConfig::ATTENTION:
      return "block_*/attention";
    case RecomputeConfig::FFN:
      return "block_*/ffn";
    default:
      return "";
  }
}

std::vector<RecomputedSegment> Segments(const Program& program,
                                        const RecomputeConfig& config) {
  const std::string pattern = DroppedScopes(config.policy());
  const auto depth = [](const std::string& path) {
    return std::count(path.begin(), path.end(), '/');
  };
  std::vector<RecomputedSegment> segments;
  int64_t matched = 0;
  for (size_t s = 0; s < program.scopes().size(); ++s) {
    const std::string path = program.ScopePath(static_cast<int>(s));
    if (pattern.empty() || depth(path) != depth(pattern) ||
        !NameMatches(pattern, path)) {
      continue;
    }
    if (matched++ % config.every() != 0) continue;
    segments.push_back(
        {program.scopes()[s].first_op, program.scopes()[s].end_op});
  }
  return segments;
}

// With more tokens in a micro-batch, products fill the GPU, and those beside
// them only delay them (docs/experiments/step_variants_h100).
constexpr int64_t kMostTokensToOverlap = 1024;

// Products of the forward pass spare this many of the 132 multiprocessors of an
// H100 for an update that moves at least so much. That saves 1.3 to 1.6 % of a
// step of the 1.5B and 2.7B models; smaller models would lose up to 2 %, and 40
// spared are no better than 24 (docs/experiments/step_variants_h100).
constexpr int kSparedMultiprocessors = 24;
constexpr int64_t kLeastUpdateToSpareFor = int64_t{30} << 30;

int SparedMultiprocessors(const Schedule& schedule) {
  int64_t update = 0;
  for (const Task& task : schedule.tasks) {
    if (task.kind == Task::Kind::kUpdate) update += task.cost.bytes;
  }
  return update >= kLeastUpdateToSpareFor ? kSparedMultiprocessors : 0;
}

// How many sections ahead ranks gather the weights that they divide.
constexpr int kPrefetchDepth = 2;

// Sets whether the step is launched as a CUDA graph.
absl::Status ChooseMode(const StepPlanOptions& options,
                        const DeviceInfo& device, StepPlan* plan) {
  const std::string op = NotCapturable(plan->loss.program);
  switch (options.execution.mode()) {
    case ExecutionConfig::GRAPH:
      if (!device.is_cuda()) {
        return absl::InvalidArgumentError(
            "execution.mode: GRAPH needs a GPU; set execution.mode: EAGER");
      }
      if (!op.empty()) {
        return absl::UnimplementedError(
            absl::StrCat("execution.mode: GRAPH does not support ", op,
                         "; set execution.mode: EAGER"));
      }
      plan->graph = true;
      return absl::OkStatus();
    case ExecutionConfig::AUTO:
      plan->eager_because = !device.is_cuda() ? "a graph needs a GPU"
                            : !op.empty()
                                ? absl::StrCat("a graph cannot hold ", op)
                                : options.eager_because;
      plan->graph = plan->eager_because.empty();
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// "block_3" of "block_3/ffn/add".
absl::string_view TopOf(absl::string_view path) {
  return path.substr(0, path.find('/'));
}

LossProgram Fused(LossProgram loss, const ExecutionConfig::Fusions& fuse,
                  const RecomputeConfig& recompute) {
  const auto wanted = [&](Fusion fusion, const OpNode& producer,
                          const OpNode& reader) {
    if (fusion == Fusion::kNextToken) return false;  // none in a step
    if (fusion == Fusion::kHeadLoss) return fuse.head_loss();
    // An op across the end of a recomputed part would make backward repeat what
    // leads to the sum, which is kept.
    const bool across = recompute.policy() == RecomputeConfig::BLOCK
                            ? TopOf(producer.name) != TopOf(reader.name)
                            : recompute.policy() != RecomputeConfig::NONE;
    return fuse.residual_norm() && !across;
  };
  FusedProgram fused = FuseOps(std::move(loss.program), wanted);
  const auto renumbered = [&](Value value) {
    return fused.renumbered[value.index];
  };
  LossProgram result = {std::move(fused.program), renumbered(loss.ids),
                        renumbered(loss.targets), renumbered(loss.loss)};
  if (loss.documents.has_value()) {
    result.positions = renumbered(*loss.positions);
    result.documents = renumbered(*loss.documents);
  }
  return result;
}

// The flat gradient buffer.
struct GradientBuffer {
  TensorType type;  // with the gaps between gradients
  GradientShards shards;
  std::vector<GradientRange> ranges;  // by parameter
  ParameterLayout layout;
};

absl::StatusOr<GradientBuffer> PlanGradientBuffer(
    const std::vector<ParameterBlockSpec>& parameters,
    const PrecisionPolicy& precision, const Sharding& sharding) {
  const at::ScalarType dtype = precision[OpClass::kGradient];
  ASSIGN_OR_RETURN(
      ParameterLayout layout,
      PlaceParameters(parameters,
                      {.master = precision[OpClass::kMasterWeights],
                       .compute = precision[OpClass::kWeights]},
                      sharding));
  const int64_t size = static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<GradientRange> ranges(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].trainable) continue;
    const int64_t begin = layout.block_offsets[p];
    ranges[p] = {begin * size, (begin + CountParameters(parameters[p])) * size};
  }
  GradientShards shards = {.sharding = sharding};
  shards.sharding.zero = 0;  // until a rewrite divides something
  for (const ParameterSection& section : layout.sections) {
    shards.sections.push_back({section.begin * size, section.end * size});
    shards.divisible.push_back(section.divided);
  }
  const TensorType type = {{layout.trainable_extent}, dtype};
  return GradientBuffer{type, std::move(shards), std::move(ranges),
                        std::move(layout)};
}

// Lists the step of a run.
class StepList {
 public:
  StepList(const StepPlanOptions& options, const ProgramTarget& target,
           const LossProgram& loss, GradientBuffer gradients)
      : options_(options),
        target_(target),
        loss_(loss),
        gradients_(std::move(gradients)) {}

  // Loss and gradients of this rank's share; with `update`, the whole step. If
  // ranks divide gradients, these are summed in any case.
  Schedule Train(bool update) const {
    ScheduleBuilder list(loss_.program, options_.micro_batches);
    const int scale = list.Scalar("loss scale");
    list.Add(ScalarTask(Task::Kind::kBegin, "loss gradient"), Phase::kForward,
             -1, {scale}, {list.Loss(), list.LossGradient(loss_.loss)});
    for (int m = 0; m < list.listed_micro_batches(); ++m) {
      list.Forward(m, loss_.loss);
      list.Backward(m);
      AddLoss(Task::Kind::kAddWeightedLoss, loss_, m, Phase::kBackward, &list);
    }
    for (Task& sum :
         ReduceTasks(gradients_.type, gradients_.shards, target_.device)) {
      const bool wanted = update || (options_.sharding.divides_gradients() &&
                                     sum.kind == Task::Kind::kReduce);
      if (!wanted) continue;
      std::vector<int> scalars;
      if (sum.kind == Task::Kind::kReduceLoss) scalars = {list.Loss()};
      list.Add(std::move(sum), Phase::kReduce, -1, scalars, scalars);
    }
    Task zero = ScalarTask(Task::Kind::kZero, "gaps between gradients");
    zero.range = {0, gradients_.type.bytes()};
    list.Add(std::move(zero), update ? Phase::kClip : Phase::kBackward);
    if (update) {
      const int squares = list.Scalar("sum of squares");
      list.Add(SumOfSquaresTask(gradients_.type, target_.device), Phase::kClip,
               -1, {}, {squares});
      list.Add(ClipTask(), Phase::kClip, -1, {squares, list.Loss(), scale},
               {list.UpdateFactors(), scale});
      for (Task& task : UpdateTasks(gradients_.layout, options_.sharding.shards,
                                    options_.muon, options_.ema,
                                    target_.precision, target_.device)) {
        list.Add(std::move(task), Phase::kOptimizer, -1,
                 {list.UpdateFactors()});
      }
    }
    Schedule schedule = std::move(list).Build();
    schedule.gradients = gradients_.ranges;
    schedule.shards = gradients_.shards;
    return schedule;
  }

  Schedule Evaluate(const LossProgram& loss) const {
    ScheduleBuilder list(loss.program, options_.micro_batches);
    list.Add(ScalarTask(Task::Kind::kBegin, "loss"), Phase::kForward, -1, {},
             {list.Loss()});
    for (int m = 0; m < list.listed_micro_batches(); ++m) {
      list.Forward(m);
      AddLoss(Task::Kind::kAddLoss, loss, m, Phase::kForward, &list);
    }
    Schedule schedule = std::move(list).Build();
    schedule.gradients = gradients_.ranges;
    schedule.shards = gradients_.shards;
    return schedule;
  }

 private:
  static Task ScalarTask(Task::Kind kind, const char* name) {
    return {.kind = kind,
            .name = name,
            .family = "scalars",
            .kernel = "ATen",
            .output = {{}, at::kFloat}};
  }
  static void AddLoss(Task::Kind kind, const LossProgram& loss, int micro_batch,
                      Phase phase, ScheduleBuilder* list) {
    list->Add(ScalarTask(kind, "sum of losses"), phase, micro_batch,
              {list->ValueOf(loss.loss, micro_batch), list->Loss()},
              {list->Loss()});
  }

  const StepPlanOptions& options_;
  const ProgramTarget& target_;
  const LossProgram& loss_;
  const GradientBuffer gradients_;
};

// Applies the rewrites that the options ask for.
void Rewrite(const StepPlanOptions& options, const ProgramTarget& target,
             StepPlan* plan) {
  const ExecutionConfig& execution = options.execution;
  const bool overlap =
      plan->graph &&
      (execution.has_overlap_weight_gradients()
           ? execution.overlap_weight_gradients()
           : options.lm.batch * options.lm.sequence <= kMostTokensToOverlap);
  const Sharding& sharding = options.sharding;
  const bool reduce = sharding.shards > 1 &&
                      (execution.has_reduce_early() ? execution.reduce_early()
                                                    : target.device.is_cuda());
  const bool defer =
      execution.has_defer_update() ? execution.defer_update() : plan->graph;
  const std::vector<RecomputedSegment> segments =
      Segments(plan->loss.program, options.recompute);
  if (segments.empty() && !overlap && !reduce && !defer &&
      !sharding.divides_optimizer()) {
    return;
  }
  plan->plain = plan->train;
  for (Schedule* const schedule : {&plan->train, &plan->gradients}) {
    Recompute(segments, schedule);
  }
  if (sharding.divides_optimizer()) ShardUpdate(&plan->train, sharding.zero);
  if (defer) DeferUpdate(&plan->train, SparedMultiprocessors(plan->train));
  for (Schedule* const schedule : {&plan->train, &plan->gradients}) {
    if (overlap) OverlapWeightGradients(schedule);
    if (sharding.divides_gradients()) {
      ShardGradients(schedule);
    } else if (reduce) {
      ReduceEarly(schedule);
    }
  }
  for (Schedule* const schedule :
       {&plan->train, &plan->gradients, &plan->evaluate}) {
    if (sharding.divides_weights()) {
      ShardWeights(schedule, UnshardTask(target.device), kPrefetchDepth);
    }
    AddDataWaits(schedule);
  }
}

}  // namespace

absl::Status PlanLists(const StepPlanOptions& options,
                       const ProgramTarget& target, StepPlan* plan) {
  const Program& program = plan->loss.program;
  plan->micro_batches = options.micro_batches;
  plan->sharding = options.sharding;
  plan->ema = options.ema;
  plan->reduction = target.precision[OpClass::kReduction];
  RETURN_IF_ERROR(ChooseMode(options, target.device, plan));
  ASSIGN_OR_RETURN(GradientBuffer buffer,
                   PlanGradientBuffer(program.parameters(), target.precision,
                                      options.sharding));
  const StepList list(options, target, plan->loss, std::move(buffer));
  plan->train = list.Train(/*update=*/true);
  plan->gradients = list.Train(/*update=*/false);
  plan->evaluate = list.Evaluate(plan->evaluation_loss);
  Rewrite(options, target, plan);
  const bool arena =
      plan->graph || options.execution.storage() == ExecutionConfig::ARENA;
  const LifetimeOptions of_training = {
      .lend_gradients = !options.sharding.divides_gradients(), .arena = arena};
  plan->train_lifetimes = PlanLifetimes(plan->train, of_training);
  plan->gradients_lifetimes = PlanLifetimes(plan->gradients, of_training);
  plan->evaluate_lifetimes = PlanLifetimes(plan->evaluate, {.arena = arena});
  return absl::OkStatus();
}

std::string NotCapturable(const Program& program) {
  for (const OpNode& node : program.ops()) {
    if (node.op->capturable()) continue;
    return absl::StrCat(node.name, " (", node.op->kind(), " by ",
                        node.op->kernel(), "), which makes the host wait");
  }
  return "";
}

int64_t StepPlan::arena_bytes() const {
  return std::max({train_lifetimes.arena_bytes, gradients_lifetimes.arena_bytes,
                   evaluate_lifetimes.arena_bytes});
}

absl::Status VerifyStep(const StepPlan& plan) {
  ASSIGN_OR_RETURN(const StepContents contents,
                   VerifyLifetimes(plan.train, plan.train_lifetimes));
  RETURN_IF_ERROR(
      VerifyLifetimes(plan.gradients, plan.gradients_lifetimes).status());
  RETURN_IF_ERROR(
      VerifyLifetimes(plan.evaluate, plan.evaluate_lifetimes).status());
  if (!plan.plain.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StepContents expected,
                   VerifyLifetimes(*plan.plain, PlanLifetimes(*plan.plain)));
  if (contents == expected) return absl::OkStatus();
  return absl::InternalError(
      "the rewritten step computes something else than the plain one");
}

absl::StatusOr<std::shared_ptr<const StepPlan>> PlanStep(
    const StepPlanOptions& options, const ProgramTarget& target) {
  LmOptions evaluation = options.lm;
  evaluation.objective = {};
  ASSIGN_OR_RETURN(LossProgram loss, BuildLossProgram(options.lm, target));
  ASSIGN_OR_RETURN(LossProgram evaluation_loss,
                   BuildLossProgram(evaluation, target));
  const auto fused = [&](LossProgram program) {
    return Fused(std::move(program), options.execution.fuse(),
                 options.recompute);
  };
  auto plan = std::make_shared<StepPlan>(fused(std::move(loss)),
                                         fused(std::move(evaluation_loss)));
  RETURN_IF_ERROR(PlanLists(options, target, plan.get()));
  return plan;
}

double ModelFlopsPerToken(const StepPlan& plan,
                          const std::function<double(int64_t latest)>& pairs) {
  const TensorType& ids = plan.loss.program.info(plan.loss.ids).type;
  std::map<int64_t, double> pairs_of_latest;  // counted once: it takes long
  double flops = 0;
  for (const StepRun& run : plan.train.runs) {
    if (run.phase == Phase::kRecompute || run.micro_batch != 0) continue;
    double share = 1;
    const AttentionProblem* const attention =
        pairs == nullptr || run.op < 0
            ? nullptr
            : AttentionProblemOf(*plan.train.program->ops()[run.op].op);
    if (attention != nullptr) {
      const int64_t before = attention->mask.before;
      const int64_t latest = before == kAllKeys ? attention->t : before + 1;
      const auto [counted, is_new] = pairs_of_latest.try_emplace(latest);
      if (is_new) counted->second = pairs(latest);
      share = std::min(1.0, counted->second / VisiblePairs(*attention));
    }
    flops += share * plan.train.CostOf(run).product_flops;
  }
  return flops / static_cast<double>(ids.numel());
}

}  // namespace tessera
