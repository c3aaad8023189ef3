#ifndef FRAMEWORK_PROGRAM_SCHEDULE_H_
#define FRAMEWORK_PROGRAM_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/params/sharding.h"
#include "framework/program/program.h"

namespace tessera {

// The part of a step that a run belongs to. A run on another stream has the
// phase of the runs of the main stream that are next to it in the list.
enum class Phase {
  kForward,
  kRecompute,
  kBackward,
  kReduce,
  kClip,
  kOptimizer,
};
absl::string_view PhaseName(Phase phase);

// Where a run writes one gradient: into a value, or into a parameter's range of
// the flat gradient buffer.
struct GradientWrite {
  int value = -1;
  // Index into Program::parameters(). With a value as well: the parameter's
  // gradient of one micro-batch, if ranks divide gradients.
  int parameter = -1;
  // True if an earlier run of the step has written it: one of an earlier
  // micro-batch, or of the same one (a tied weight).
  bool accumulate = false;

  bool wanted() const { return value >= 0 || parameter >= 0; }
};

// A range of the flat gradient buffer, in bytes.
struct GradientRange {
  int64_t begin = 0, end = 0;

  bool empty() const { return begin == end; }
  bool Overlaps(const GradientRange& other) const {
    return begin < other.end && other.begin < end;
  }
};

// How ranks share the flat gradient buffer (framework/params/sharding.h).
struct GradientShards {
  std::vector<GradientRange> sections;  // ascending; all of the buffer
  // By section: whether ranks divide its weights in stage 3.
  std::vector<bool> divisible;
  Sharding
      sharding;  // that of the plain list until a rewrite divides something

  bool divided() const { return sharding.divides_optimizer(); }
  // The index of the first section in `range`.
  int SectionOf(const GradientRange& range) const;
  // Whether ranks divide the weights that have their gradients in `range`.
  bool DividesWeights(const GradientRange& range) const;
  GradientRange PartOf(const GradientRange& section, int shard) const;
  GradientRange HeldPart(const GradientRange& section) const {
    return PartOf(section, sharding.index);
  }
  // This rank's parts of the sections in `range`, which it cuts nowhere.
  std::vector<GradientRange> HeldOf(const GradientRange& range) const;
};

// Work of a step other than the model's ops. framework/optim, framework/dist
// and the step's plan describe tasks when a step is planned; a TaskRunner
// (executor.h) runs them.
struct Task {
  enum class Kind {
    kBegin,    // sets results[0], the loss, to 0, and results[1], if any, to
               // its gradient
    kAddLoss,  // results[0] += operands[0], the loss of one micro-batch
    kAddWeightedLoss,  // results[0] += operands[0] * the weight of a token
    kReduce,           // sums `range`, or the operands, over the ranks
    kReduceLoss,       // sums the loss, operands[0], over the ranks
    kReduceSquares,    // sums the sums of squares of the ranks' parts
    kZero,             // zeroes the gradients and gaps that no run writes
    kSumOfSquares,     // of the gradients in `range`, into results[0]
    kClip,     // norm; fixes what the update does, or that it is skipped
    kUpdate,   // the weights whose gradients lie in `range`, and their moments
    kGather,   // those weights, of which each rank has updated its part
    kUnshard,  // those weights, of which each rank has its part, into results
  };
  Kind kind = Kind::kBegin;
  std::string name;    // "gradient norm"
  std::string family;  // the kind of op: "sum_of_squares"
  std::string kernel;  // "own kernel"
  TensorType output;
  Cost cost;
  GradientRange range;  // empty: touches no gradient
  // Only this rank's parts of `range` (Schedule::shards) are of use afterwards,
  // read, or updated.
  bool own_part = false;
  // kReduce: adds to the sums of earlier micro-batches.
  bool adds = false;
  // Bytes of the joint buffer before operands[0] of a kReduce or results[0] of
  // a kUnshard.
  int64_t before_first = 0;
  // kUpdate: whether it may be cut where parameters begin.
  bool divisible = true;
  // kUpdate: the share of `cost` of the rank with the most to do, if ranks
  // divide it; 0: all have as much.
  double largest_part = 0;
};

// Values that lie side by side, so that one communication serves them all.
struct JointBuffer {
  int64_t bytes = 0;
  struct Part {
    int value = -1;
    int64_t offset = 0;  // bytes
  };
  std::vector<Part> parts;
};

// The streams of a step. Runs of one stream execute in the order of the list.
enum class StepStream { kMain, kWeightGradients, kCommunication, kUpdate };
inline constexpr int kStepStreams = 4;

// One entry of a schedule. Numbers are values of the schedule; -1 means none.
struct StepRun {
  enum class Kind {
    kForward,          // results = op(operands)
    kBackward,         // d_operands = gradient of op(operands), given d_results
    kForwardBackward,  // both at once (Op::joins_backward())
    kAdd,   // results[0] = operands[0] + operands[1]: a value with two
            // readers has the sum of their gradients
    kTask,  // Schedule::tasks[task]
  };
  Kind kind = Kind::kForward;
  Phase phase = Phase::kForward;
  int op = -1;  // index into Program::ops(); for kAdd the op just run
  int task = -1;
  int micro_batch = -1;  // as listed; -1: belongs to all of them
  std::vector<int> operands, results;
  std::vector<int> d_results;
  std::vector<GradientWrite> d_operands;
  StepStream stream = StepStream::kMain;
  // Earlier runs of other streams, indices into Schedule::runs, that must have
  // ended before this one begins.
  std::vector<int> waits;
  // Multiprocessors that a forward run leaves to runs of other streams.
  int spared_multiprocessors = 0;

  bool is_backward() const {
    return kind == Kind::kBackward || kind == Kind::kForwardBackward;
  }
  // The operands whose gradients are wanted.
  Positions wanted() const;
};

// The work of a step as one list of runs. For each micro-batch: the program's
// ops in order, then their backward in reverse. Tasks stand between. Rewrites
// (framework/program/rewrites) change the list before anything runs. All
// streams are joined at its end.
//
// At most three micro-batches are listed: micro-batch 0, which writes the
// gradients; micro-batch 1, whose runs are repeated for all between the first
// and the last; and the last, which completes the gradients. All streams are
// joined between repetitions.
struct Schedule {
  const Program* program = nullptr;  // outlives the schedule
  int micro_batches = 1;
  // True if the list begins with the update of the step before, whose gradients
  // it finds in the flat buffer, and leaves its own update to the next.
  bool starts_pending = false;
  // First the program's values, with the same numbers: they are those of
  // micro-batch 0. Then the values of the other listed micro-batches, then
  // gradients and recomputed values.
  std::vector<ValueInfo> values;
  std::vector<StepRun> runs;
  std::vector<Task> tasks;
  // The gradient of the loss (1 / tokens, times the loss scale): an input, or
  // written by Task::Kind::kBegin; -1 without a backward pass.
  int loss_gradient = -1;
  // What Task::Kind::kClip fixes for the update, which reads it; the caller's.
  // -1 without an update.
  int update_factors = -1;
  // The values left to the caller: the program's outputs, and the gradients of
  // inputs that need one.
  std::vector<int> outputs;
  struct InputGradient {
    int input = -1, gradient = -1;
  };
  std::vector<InputGradient> input_gradients;
  // Trained parameters that get no gradient from any run; theirs is zero.
  std::vector<int> without_gradient;
  // By parameter: its range of the flat gradient buffer, empty if frozen.
  // No ranges at all if the schedule does not describe that buffer; then no
  // value may be stored there.
  std::vector<GradientRange> gradients;
  GradientShards shards;  // none if the gradients have no ranges
  std::vector<JointBuffer> joint;
  // By micro-batch and value of the program: the value of the schedule.
  std::vector<std::vector<int>> values_of;

  int ValueOf(Value value, int micro_batch) const {
    return values_of[micro_batch][value.index];
  }
  int listed_micro_batches() const {
    return static_cast<int>(values_of.size());
  }
  // How often the runs of micro-batch 1 are run.
  int repetitions() const { return micro_batches - listed_micro_batches() + 1; }
  bool IsTask(const StepRun& run, Task::Kind kind) const {
    return run.kind == StepRun::Kind::kTask && tasks[run.task].kind == kind;
  }
  // The first run of a backward pass; the number of runs if there is none.
  int FirstBackward() const;
  Cost CostOf(const StepRun& run) const;
  // "qkv" of the op "block_3/attention/qkv"; "+ qkv" adds gradients that met
  // there. For a task, Task::name.
  std::string NameOf(const StepRun& run) const;
  // The scope (index into Program::scopes()) of a run.
  int ScopeOf(const StepRun& run) const;
};

// A value, or a parameter's gradient, that a run reads or writes. Weights are
// the program's values of role kParameter.
struct Access {
  int value = -1, parameter = -1;
  bool reads = false, writes = false;  // both: adds to it
};
// Whether all ranks take part in a run.
bool IsCollective(const Schedule& schedule, const StepRun& run);
// The values, weights and gradients that a run reads or writes, without the
// moments and scalars that only tasks use.
std::vector<Access> AccessesOf(const Schedule& schedule, const StepRun& run);
// Sets to -1 the operands and results of a backward run that it does not need
// for the gradients it writes.
void KeepReads(const Program& program, StepRun* run);

// Lists the work of a step in order:
//
//   ScheduleBuilder list(program, micro_batches);
//   list.Forward(0, loss);
//   list.Backward(0);
//   const Schedule schedule = std::move(list).Build();
class ScheduleBuilder {
 public:
  // Lists at most three micro-batches (Schedule).
  ScheduleBuilder(const Program& program, int micro_batches);

  // `loss` is the value that backward starts from, usually a scalar; undefined
  // without a backward pass.
  void Forward(int micro_batch, Value loss = {});
  // After Forward() of the same micro-batch. The gradients of parameters are
  // added to those of earlier micro-batches.
  void Backward(int micro_batch);
  void Add(Task task, Phase phase, int micro_batch = -1,
           std::vector<int> operands = {}, std::vector<int> results = {});

  // The sum of the micro-batches' losses, a Scalar().
  int Loss();
  // The value, so far without a writer, that backward starts from.
  int LossGradient(Value loss);
  // A scalar of the caller, FP32, by which tasks depend on each other.
  int Scalar(std::string name);
  // Schedule::update_factors, so far without a writer.
  int UpdateFactors();
  int ValueOf(Value value, int micro_batch) const {
    return schedule_.ValueOf(value, micro_batch);
  }
  int listed_micro_batches() const { return schedule_.listed_micro_batches(); }

  Schedule Build() &&;

 private:
  class BackwardPass;

  Schedule schedule_;
  Value loss_;
  int total_loss_ = -1;
  std::vector<bool> written_;  // by parameter: its gradient
};

// The forward and backward pass of one micro-batch.
Schedule TrainingSchedule(const Program& program, Value loss);
// Only the forward runs, for evaluation and generation.
Schedule ForwardSchedule(const Program& program);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_SCHEDULE_H_
