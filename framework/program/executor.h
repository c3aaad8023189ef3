#ifndef FRAMEWORK_PROGRAM_EXECUTOR_H_
#define FRAMEWORK_PROGRAM_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "framework/base/phase_observer.h"
#include "framework/params/parameter_store.h"
#include "framework/program/lifetime.h"
#include "framework/program/random_state.h"
#include "framework/program/schedule.h"

namespace tessera {

class Executor;

// Does the tasks of a schedule. Like an op, it enqueues work on the current
// stream and throws LibTorch's exceptions (ThrowIfError() for a status).
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  // Called before each execution of micro-batch 1's runs, the first included,
  // if they are repeated (Schedule::repetitions()). Sets the inputs of
  // micro-batch `micro_batch`.
  virtual void BeginRepetition(Executor& executor, int micro_batch) {}
  virtual void Run(const Task& task, absl::Span<const at::Tensor> operands,
                   absl::Span<const at::Tensor> results) = 0;
};

struct ExecutorOptions {
  PhaseObserver* phases = nullptr;
  TaskRunner* tasks = nullptr;  // needed for tasks and repetitions
  // At least lifetimes.arena_bytes bytes on the store's device, shared with
  // executors that do not run at the same time. If undefined, the executor
  // allocates its own.
  at::Tensor arena;
  const Executor* constants = nullptr;  // uses this executor's constants
};

// Runs a schedule over the parameters of a store. Member functions enqueue work
// on the current stream, which is the schedule's main stream, and on streams of
// the executor, joined at the end. They throw LibTorch's exceptions and, if a
// run fails, its status (ThrowIfError()) with the op's name: "op
// block_3/attention/qkv (backward): ...".
//
// Observers see each run in its phase and scopes: "backward" > "recompute" >
// "block_3" > "attention" > the op "qkv".
//
//   executor.SetInput(ids, tensor);
//   executor.Run();
//   executor.Get(loss);
class Executor {
 public:
  // `store` was made from schedule.program->parameters() and outlives the
  // executor, as do `schedule` and what `options` points to.
  Executor(const Schedule& schedule, Lifetimes lifetimes, ParameterStore& store,
           const ExecutorOptions& options = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // `tensor` is contiguous, has the value's type and is on the store's device.
  void SetInput(Value value, at::Tensor tensor) {
    SetInput(value.index, std::move(tensor));
  }
  // A value of the schedule: Schedule::ValueOf(), Schedule::loss_gradient.
  void SetInput(int value, at::Tensor tensor);

  void Run() { Run(0, static_cast<int>(entries_.size())); }
  // Runs [begin, end) of the schedule, after all before them.
  void Run(int begin, int end);

  // An output of the program for the first micro-batch, after Run(). The next
  // Run() overwrites it.
  const at::Tensor& Get(Value output) const { return Get(output.index); }
  // Any of schedule.outputs, after the run that writes it.
  const at::Tensor& Get(int output) const { return tensors_[output]; }

  // Bytes of all live activations, whatever their storage.
  int64_t live_bytes() const;
  // live_bytes() when the first backward run began, the same in every step; 0
  // before that.
  int64_t kept_bytes() const { return kept_bytes_; }

 private:
  struct Output {
    int value = -1;
    enum class From { kAllocator, kOp, kFixed, kValue } from = From::kAllocator;
    at::Tensor fixed;  // kFixed
    int over = -1;     // kValue: takes this value's memory
  };
  // A run with its tensors' locations resolved.
  struct Entry {
    const StepRun* run = nullptr;
    const Op* op = nullptr;
    std::vector<Output> outputs;
    std::vector<GradTarget> d_operands;  // those of parameters filled in
    std::string name;                    // for the observer
    OpResults results = OpResults::kOther;
    int place = 0;         // index into places_
    bool signals = false;  // a run of another stream waits for it
  };

  void BindParameters();
  void BindOutputs(Entry* entry);
  at::Tensor FixedTensor(const Buffer& buffer, int64_t offset,
                         const TensorType& type) const;
  // The index in places_ of the phases around a run.
  int PlaceOf(const StepRun& run);

  // Reports to the observer which phases end and begin.
  void Enter(int place);
  void RunEntry(int run);
  void RunOn(c10::Stream stream, int run);
  // The main stream waits for the others.
  void Join();
  void Do(Entry& entry);
  void Allocate(const Output& output);
  void Forward(const Entry& entry);
  void Backward(Entry& entry);

  const Schedule& schedule_;
  const Lifetimes lifetimes_;
  ParameterStore& store_;
  PhaseObserver* const phases_;
  TaskRunner* const tasks_;
  std::vector<at::Tensor> tensors_;  // by value; undefined while dead
  std::vector<at::TensorOptions> options_;
  at::Tensor arena_;
  std::vector<Entry> entries_;
  // Phases from the outermost on; places_[0] is outside of all.
  std::vector<std::vector<absl::string_view>> places_;
  int place_ = 0;                    // where the observer is
  std::vector<RandomState> random_;  // by op, if random()
  // The streams other than the main one; empty if the schedule does not use
  // them or the device has none.
  std::array<std::optional<c10::Stream>, kStepStreams> streams_;
  // By stream: whether the main stream must still wait for some of its work.
  std::array<bool, kStepStreams> branched_ = {};
  std::vector<std::optional<c10::Event>> ended_;  // by run, if it signals
  const int first_backward_;
  int repeated_begin_ = 0, repeated_end_ = 0;  // runs; empty if none are
  int64_t kept_bytes_ = 0;
  // Scratch space of one run.
  std::vector<at::Tensor> operands_, results_, d_results_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_EXECUTOR_H_
