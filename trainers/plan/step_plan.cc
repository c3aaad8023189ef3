#include "trainers/plan/step_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/base/check.h"
#include "framework/base/name_pattern.h"
#include "framework/base/status_macros.h"
#include "framework/program/fuse.h"
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

// The first op that a graph cannot hold; empty if there is none.
std::string NotCapturable(const Program& program) {
  for (const OpNode& node : program.ops()) {
    if (node.op->capturable()) continue;
    return absl::StrCat(node.name, " (", node.op->kind(), " by ",
                        node.op->kernel(), "), which makes the host wait");
  }
  return "";
}

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
  const auto wanted = [&](const Op& op, const OpNode& producer,
                          const OpNode& reader) {
    if (op.kind() == "linear_cross_entropy") return fuse.head_loss();
    TESSERA_CHECK(op.kind() == "add_rms_norm", "unknown fusion: ", op.kind());
    // An op across the end of a recomputed part would make backward repeat what
    // leads to the sum, which is kept.
    const bool across = recompute.policy() == RecomputeConfig::BLOCK
                            ? TopOf(producer.name) != TopOf(reader.name)
                            : recompute.policy() != RecomputeConfig::NONE;
    return fuse.residual_norm() && !across;
  };
  FusedProgram fused = FuseOps(std::move(loss.program), wanted);
  return {std::move(fused.program), fused.renumbered[loss.ids.index],
          fused.renumbered[loss.targets.index],
          fused.renumbered[loss.loss.index]};
}

// Each parameter's range in the flat gradient buffer.
absl::StatusOr<std::vector<GradientRange>> GradientRanges(
    const std::vector<ParameterBlockSpec>& parameters, at::ScalarType dtype) {
  ASSIGN_OR_RETURN(const ParameterLayout layout, PlaceParameters(parameters));
  const int64_t size = static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<GradientRange> ranges(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].trainable) continue;
    const int64_t begin = layout.block_offsets[p];
    ranges[p] = {begin * size, (begin + CountParameters(parameters[p])) * size};
  }
  return ranges;
}

}  // namespace

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
  const Program& program = plan->loss.program;
  plan->micro_batches = options.micro_batches;
  plan->reduction = target.precision[OpClass::kReduction];
  plan->train = TrainingSchedule(program, plan->loss.loss,
                                 Segments(program, options.recompute));
  plan->evaluate = ForwardSchedule(plan->evaluation_loss.program);
  // With several micro-batches, the buffer holds the sum of the earlier ones.
  if (options.micro_batches == 1) {
    ASSIGN_OR_RETURN(plan->lent_gradients,
                     GradientRanges(program.parameters(),
                                    target.precision[OpClass::kGradient]));
  }
  RETURN_IF_ERROR(ChooseMode(options, target.device, plan.get()));
  if (plan->graph && options.execution.overlap_weight_gradients()) {
    OverlapWeightGradients(&plan->train);
  }
  const bool arena =
      plan->graph || options.execution.storage() == ExecutionConfig::ARENA;
  plan->train_lifetimes = PlanLifetimes(
      plan->train, {.gradients = plan->lent_gradients, .arena = arena});
  plan->evaluate_lifetimes = PlanLifetimes(plan->evaluate, {.arena = arena});
  RETURN_IF_ERROR(VerifyLifetimes(plan->train, plan->train_lifetimes,
                                  plan->lent_gradients));
  RETURN_IF_ERROR(VerifyLifetimes(plan->evaluate, plan->evaluate_lifetimes));
  return plan;
}

double ModelFlopsPerToken(const StepPlan& plan) {
  double flops = 0;
  for (const OpRun& run : plan.train.runs) {
    if (run.phase == Phase::kRecompute) continue;
    flops += plan.train.CostOf(run).product_flops;
  }
  const TensorType& ids = plan.loss.program.info(plan.loss.ids).type;
  return flops / static_cast<double>(ids.numel());
}

}  // namespace tessera
