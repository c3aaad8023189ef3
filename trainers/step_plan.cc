#include "trainers/step_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "framework/base/name_pattern.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

// The scopes that a policy drops, as a pattern over their paths.
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

// Each parameter's place in the flat gradient buffer.
absl::StatusOr<std::vector<GradientRange>> GradientRanges(
    const std::vector<ParameterBlockSpec>& parameters, int64_t element_bytes) {
  std::vector<GradientRange> ranges(parameters.size());
  int64_t offset = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].trainable) continue;
    const int64_t end = offset + CountParameters(parameters[p]);
    ranges[p] = {offset * element_bytes, end * element_bytes};
    offset = AlignUp(end);
  }
  return ranges;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StepPlan>> PlanStep(
    const StepPlanOptions& options, const ProgramTarget& target) {
  ASSIGN_OR_RETURN(LossProgram loss, BuildLossProgram(options.lm, target));
  auto plan = std::make_shared<StepPlan>(std::move(loss));
  const Program& program = plan->loss.program;
  plan->micro_batches = options.micro_batches;
  plan->train = TrainingSchedule(program, plan->loss.loss,
                                 Segments(program, options.recompute));
  plan->evaluate = ForwardSchedule(program);
  const int64_t element_bytes = static_cast<int64_t>(
      c10::elementSize(target.precision[OpClass::kGradient]));
  std::vector<GradientRange> ranges;
  // Gradients of several micro-batches are summed there.
  if (options.micro_batches == 1) {
    ASSIGN_OR_RETURN(ranges,
                     GradientRanges(program.parameters(), element_bytes));
  }
  const bool arena = options.execution.storage() == ExecutionConfig::ARENA;
  plan->train_lifetimes =
      PlanLifetimes(plan->train, {.gradients = ranges, .arena = arena});
  plan->evaluate_lifetimes = PlanLifetimes(plan->evaluate);
  return plan;
}

double ModelFlopsPerToken(const StepPlan& plan) {
  double flops = 0;
  for (const Run& run : plan.train.runs) {
    if (run.kind == Run::Kind::kAdd || run.phase == Phase::kRecompute) continue;
    const Op& op = *plan.loss.program.ops()[run.op].op;
    flops += (run.kind == Run::Kind::kForward ? op.ForwardCost()
                                              : op.BackwardCost(run.wanted()))
                 .product_flops;
  }
  return flops / static_cast<double>(
                     plan.loss.program.info(plan.loss.ids).type.numel());
}

}  // namespace tessera
