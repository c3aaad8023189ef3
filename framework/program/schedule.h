#ifndef FRAMEWORK_PROGRAM_SCHEDULE_H_
#define FRAMEWORK_PROGRAM_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/program/program.h"

namespace tessera {

enum class Phase { kForward, kRecompute, kBackward };
absl::string_view PhaseName(Phase phase);

// Where a run writes one gradient: into a value, or into a parameter's range of
// the flat gradient buffer.
struct GradientWrite {
  int value = -1;
  int parameter = -1;  // index into Program::parameters()
  // True if an earlier run of this pass has written it (a tied weight).
  bool accumulate = false;

  bool wanted() const { return value >= 0 || parameter >= 0; }
};

// One entry of a schedule. Numbers are values of the schedule; -1 means none.
struct OpRun {
  enum class Kind {
    kForward,          // results = op(operands)
    kBackward,         // d_operands = gradient of op(operands), given d_results
    kForwardBackward,  // both at once (Op::joins_backward())
    kAdd,  // results[0] = operands[0] + operands[1]: a value with two
           // readers has the sum of their gradients
  };
  Kind kind = Kind::kForward;
  Phase phase = Phase::kForward;
  int op = -1;  // index into Program::ops(); for kAdd the op just run
  std::vector<int> operands, results;
  std::vector<int> d_results;
  std::vector<GradientWrite> d_operands;
  // If >= 0, an index into Schedule::runs: this run may take place beside those
  // that follow it, until that one begins or the pass ends.
  int beside_until = -1;

  bool is_backward() const {
    return kind == Kind::kBackward || kind == Kind::kForwardBackward;
  }
  // The operands whose gradients are wanted.
  Positions wanted() const;
};

// The forward and backward pass of one micro-batch as a list of runs: the
// program's ops in order, then their backward in reverse, interleaved with the
// forward runs that recomputation repeats. It is fixed before anything runs.
struct Schedule {
  const Program* program = nullptr;  // outlives the schedule
  // The program's values first, with the same numbers, then recomputed values
  // and gradients.
  std::vector<ValueInfo> values;
  std::vector<OpRun> runs;
  int first_backward = 0;  // index into runs; its size without a backward pass
  // The gradient of the loss, which the caller sets (1 / tokens, times the loss
  // scale); -1 without a backward pass.
  int loss_gradient = -1;
  // The values left to the caller: the program's outputs, and the gradients of
  // inputs that need one.
  std::vector<int> outputs;
  struct InputGradient {
    int input = -1, gradient = -1;
  };
  std::vector<InputGradient> input_gradients;
  // Trained parameters that get no gradient from any run; theirs is zero.
  std::vector<int> without_gradient;

  Cost CostOf(const OpRun& run) const;
  // "qkv" of the op "block_3/attention/qkv"; "+ qkv" adds gradients that met
  // there.
  std::string NameOf(const OpRun& run) const;
};

// Ops [first_op, end_op). Their results are dropped after the forward pass,
// except those that later ops read, and recomputed when backward reaches them
// (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
struct RecomputedSegment {
  int first_op = 0, end_op = 0;
};

// `loss` is the value that backward starts from, usually a scalar.
Schedule TrainingSchedule(const Program& program, Value loss,
                          absl::Span<const RecomputedSegment> segments = {});
// Gives the gradient of a weight, which only the optimizer waits for, a run of
// its own where its op allows it (Op::separable()), beside the runs that
// follow. At most two are under way at once. What they read lives longer for
// it.
void OverlapWeightGradients(Schedule* schedule);
// Only the forward runs, for evaluation and generation.
Schedule ForwardSchedule(const Program& program);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_SCHEDULE_H_
