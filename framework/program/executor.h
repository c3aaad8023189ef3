#ifndef FRAMEWORK_PROGRAM_EXECUTOR_H_
#define FRAMEWORK_PROGRAM_EXECUTOR_H_

#include <cstdint>
#include <deque>
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

// Memory shared by executors of one program that do not run at the same time.
struct SharedMemory {
  // At least lifetimes.arena_bytes bytes on the store's device. If undefined,
  // the executor allocates its own.
  at::Tensor arena;
  const Executor* constants = nullptr;  // uses this executor's constants
};

// Runs a schedule over the parameters of a store. Member functions enqueue work
// on the current stream. They throw LibTorch's exceptions and, if an op fails,
// its status (ThrowIfError()) with the op's name: "op block_3/attention/qkv
// (backward): ...". While the stream is recorded as a CUDA graph, runs beside
// others (OpRun::beside_until) become a branch of the graph; else they take
// their turn.
//
//   executor.SetInput(ids, tensor);
//   executor.RunForward();
//   executor.RunBackward(/*accumulate=*/false);
//   executor.Get(loss);
class Executor {
 public:
  // `store` was made from schedule.program->parameters() and outlives the
  // executor, as do `schedule` and `phases` (which may be null).
  Executor(const Schedule& schedule, Lifetimes lifetimes, ParameterStore& store,
           PhaseObserver* phases, const SharedMemory& shared = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // `tensor` is contiguous, has the value's type and is on the store's device.
  void SetInput(Value value, at::Tensor tensor) {
    SetInput(value.index, std::move(tensor));
  }
  // Sets schedule.loss_gradient.
  void SetInput(int value, at::Tensor tensor);

  void RunForward();
  // If `accumulate`, adds to the store's gradients, which hold the sum over the
  // earlier micro-batches.
  void RunBackward(bool accumulate);

  // An output of the program, after RunForward(); the loss after RunBackward()
  // if the schedule has one. The next run overwrites it.
  const at::Tensor& Get(Value output) const { return Get(output.index); }
  // Any of schedule.outputs, after the run that writes it.
  const at::Tensor& Get(int output) const { return tensors_[output]; }

  // Bytes of all live activations, whatever their storage.
  int64_t live_bytes() const;

 private:
  struct Output {
    int value = -1;
    enum class From { kAllocator, kOp, kFixed, kValue } from = From::kAllocator;
    at::Tensor fixed;  // kFixed
    int over = -1;     // kValue: takes this value's memory
  };
  // A run with its tensors' locations resolved.
  struct Entry {
    const OpRun* run = nullptr;
    const Op* op = nullptr;
    std::vector<Output> outputs;
    std::vector<GradTarget> d_operands;  // those of parameters filled in
    std::string name;                    // for the observer
  };

  void BindParameters();
  void BindOutputs(int run, Entry* entry);
  at::Tensor FixedTensor(const Buffer& buffer, const TensorType& type) const;

  void RunEntries(int begin, int end, bool accumulate);
  // Reports to the observer which scopes end and begin. Those of recomputation
  // are inside a phase "recompute".
  void EnterScope(int scope, bool recomputes);
  void RunEntry(Entry& entry, bool accumulate);
  void RunBeside(Entry& entry, bool accumulate);
  // The current stream waits for the runs beside it until `run`.
  void WaitForRunsBeside(int run);
  // After a failure. Throws nothing.
  void AbandonRunsBeside();
  void Allocate(const Output& output);
  void Forward(const Entry& entry);
  void Backward(Entry& entry, bool accumulate);

  const Schedule& schedule_;
  const Lifetimes lifetimes_;
  ParameterStore& store_;
  PhaseObserver* const phases_;
  std::vector<at::Tensor> tensors_;  // by value; undefined while dead
  std::vector<at::TensorOptions> options_;
  at::Tensor arena_;
  std::vector<Entry> entries_;
  int scope_ = 0;                    // the open scope
  bool recomputes_ = false;          // the phase "recompute" is open
  std::vector<RandomState> random_;  // by op, if random()
  struct RunUnderWay {
    int until = 0;
    c10::Event done;
  };
  std::deque<RunUnderWay> beside_;  // on side_stream_
  std::optional<c10::Stream> side_stream_;
  bool branched_ = false;  // the recording has work there to wait for
  // Scratch space of one run.
  std::vector<at::Tensor> operands_, results_, d_results_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_EXECUTOR_H_
