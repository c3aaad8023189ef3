#ifndef TRAINERS_PLAN_STEP_PLAN_H_
#define TRAINERS_PLAN_STEP_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "framework/optim/muon_math.h"
#include "framework/program/execution_config.pb.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"
#include "models/transformer_lm.h"

namespace tessera {

// The step of a run as data, from which training, evaluation, the memory plan,
// FLOPs and the printed step are derived. Not movable, because its parts point
// to each other.
struct StepPlan {
  StepPlan(LossProgram trained, LossProgram evaluated)
      : loss(std::move(trained)), evaluation_loss(std::move(evaluated)) {}
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  // Of one micro-batch: the training objective, and the cross entropy without
  // its other terms. Both programs have the same values.
  LossProgram loss, evaluation_loss;
  int micro_batches = 1;
  Sharding sharding;
  bool ema = false;    // whether updates average the weights
  bool graph = false;  // launched as a CUDA graph
  // Why execution.mode: AUTO launches kernel by kernel; empty if it does not.
  std::string eager_because;
  at::ScalarType reduction = at::kFloat;  // of the gradient norm and loss
  // The whole step; loss and gradients of this rank's share, without sums over
  // the ranks and update; the cross entropy of this rank's share.
  Schedule train, gradients, evaluate;
  // `train` before its rewrites, if it has any.
  std::optional<Schedule> plain;
  Lifetimes train_lifetimes, gradients_lifetimes, evaluate_lifetimes;

  // The size of the buffer that holds the arena of each list, one at a time.
  // If the list `gradients` needs the most, training holds memory that only the
  // diagnosis of a loss that is not finite uses.
  int64_t arena_bytes() const;
};

struct StepPlanOptions {
  LmOptions lm;  // of one micro-batch
  int micro_batches = 1;
  Sharding sharding;  // of the data ranks
  MuonOptions muon;   // of the blocks that ProgramTarget::muon marks
  bool ema = false;   // whether updates average the weights
  RecomputeConfig recompute;
  ExecutionConfig execution;
  // Why execution.mode: AUTO must not use a graph, "observe.nvtx is set"; empty
  // if it may.
  std::string eager_because;
};

// InvalidArgument for a pattern of frozen or Muon's parameters that matches
// none, or only part of a fused block, and for a CUDA graph without a GPU;
// Unimplemented names an op that a graph cannot hold.
absl::StatusOr<std::shared_ptr<const StepPlan>> PlanStep(
    const StepPlanOptions& options, const ProgramTarget& target);

// The part of PlanStep() that follows from the programs, which `plan` holds:
// fills in everything else.
absl::Status PlanLists(const StepPlanOptions& options,
                       const ProgramTarget& target, StepPlan* plan);

// The first op of a program that a CUDA graph cannot hold; empty if there is
// none.
std::string NotCapturable(const Program& program);

// Checks the lists and their memory (framework/program/verify.h), and that
// rewrites left a list that computes the same. Internal if not.
absl::Status VerifyStep(const StepPlan& plan);

// Floating-point operations of the model per training token: the matrix
// products of forward and backward, in attention for the pairs that the mask
// keeps. Recomputation, norms, softmax and the optimizer are not counted.
//
// If all parameters are trained, this is 6 N + 6 L W T (Kaplan et al., "Scaling
// Laws for Neural Language Models", 2020, section 2.1), where N is the number
// of weights in linear layers, L of layers, W = heads * head dim and T the
// context. PaLM (Chowdhery et al., 2022, appendix B) counts the full square of
// attention, so its figures are higher.
//
// `pairs` is how many pairs of a query and one of its `latest` keys a sequence
// of packed documents has, on average; absent for one document.
double ModelFlopsPerToken(
    const StepPlan& plan,
    const std::function<double(int64_t latest)>& pairs = nullptr);

}  // namespace tessera

#endif  // TRAINERS_PLAN_STEP_PLAN_H_
