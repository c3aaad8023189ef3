#ifndef FRAMEWORK_PROGRAM_OP_H_
#define FRAMEWORK_PROGRAM_OP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/base/phase_observer.h"
#include "framework/program/value.h"

namespace tessera {

// Where a backward pass writes an operand's gradient.
struct GradTarget {
  at::Tensor grad;          // undefined: this gradient is not needed
  bool accumulate = false;  // += instead of =; only for parameters
};

// Writes or accumulates `value`, rounding once to the dtype of `target.grad`.
void WriteGrad(const GradTarget& target, const at::Tensor& value);

// Some of an op's operands or results, by position.
class Positions {
 public:
  Positions() = default;
  Positions(std::initializer_list<int> positions) {
    for (const int i : positions) Add(i);
  }
  static Positions All(int count) {
    Positions all;
    for (int i = 0; i < count; ++i) all.Add(i);
    return all;
  }

  void Add(int position) { bits_ |= uint64_t{1} << position; }
  void Remove(int position) { bits_ &= ~(uint64_t{1} << position); }
  bool Has(int position) const { return (bits_ >> position & 1) != 0; }
  bool empty() const { return bits_ == 0; }

 private:
  uint64_t bits_ = 0;
};

struct ForwardArgs {
  absl::Span<const at::Tensor> operands;
  // Contiguous, uninitialised and of the results' types. Undefined if
  // AllocatesResults(): then the op assigns them.
  absl::Span<at::Tensor> results;
  PhaseObserver* phases = nullptr;
  // Multiprocessors that matrix products leave to what runs beside them.
  int spared_multiprocessors = 0;
};

struct BackwardArgs {
  // Only those that BackwardReads() names are defined.
  absl::Span<const at::Tensor> operands, results;
  // Undefined for results that no gradient reaches.
  absl::Span<const at::Tensor> d_results;
  absl::Span<const GradTarget> d_operands;
  PhaseObserver* phases = nullptr;
};

// What a backward pass reads in addition to the gradients of the results.
struct BackwardReads {
  Positions operands, results;
};

// An operand or result whose memory a gradient may reuse.
struct Overwritable {
  enum class What { kOperand, kResult, kResultGradient };
  What what = What::kOperand;
  int position = 0;
};

// The work of one call. `bytes` is the least possible memory traffic: every
// operand is read once and every result written once.
struct Cost {
  double flops = 0;
  int64_t bytes = 0;
  // The part of `flops` in matrix products (tensor cores).
  double product_flops = 0;
  // Number of matrix products, if those of an op are equally large; else 0.
  int64_t products = 0;

  Cost& operator+=(const Cost& other);
};

class Op;

// Which ops become one: those that ExecutionConfig::Fusions has, and those of a
// token that follows others (framework/ops/linear/few_rows.h).
enum class Fusion { kHeadLoss, kResidualNorm, kNextToken };

// An op that does the work of two (rewrites/fuse_ops.h).
struct FusedOp {
  std::unique_ptr<Op> op;  // null if there is none
  Fusion fusion = Fusion::kHeadLoss;
  // Which results of the two it has: first the producer's, then the reader's.
  Positions of_producer, of_reader;
};

// One operation of a program. It is immutable and knows shapes but no tensors,
// so one object serves every run of the program.
//
// An op says what its backward reads and what may be overwritten. Only the plan
// (lifetime.h) knows whether that memory is free.
class Op {
 public:
  virtual ~Op() = default;

  // The operation's usual name, which is also its folder's: "linear".
  virtual absl::string_view kind() const = 0;
  // The implementation on the program's target: "cuBLAS", "FLASH_CUDA".
  virtual std::string kernel() const = 0;

  // Forward() and Backward() enqueue work on the current stream and throw
  // LibTorch's exceptions (ThrowIfError() for a status).
  virtual void Forward(const ForwardArgs& args) const = 0;
  // Writes the gradients in args.d_operands.
  virtual void Backward(const BackwardArgs& args) const = 0;

  // True if training runs ForwardBackward() in place of both.
  virtual bool joins_backward() const { return false; }
  // Writes args.results and the gradients in args.d_operands; all operands are
  // defined. BackwardWorkspaceBytes() and BackwardCost() are those of this
  // call. For an op that nothing runs after in the forward pass: a loss.
  virtual void ForwardBackward(const BackwardArgs& args) const;

  // What Backward() reads to compute the gradients of `wanted`.
  virtual BackwardReads ReadsInBackward(Positions wanted) const = 0;
  // True if gradients of parameters and of activations may be computed in
  // separate calls.
  virtual bool separable() const { return false; }
  // The result whose gradient equals that of `operand`: an addition passes it
  // through and computes nothing.
  virtual std::optional<int> PassesGradient(int operand) const {
    return std::nullopt;
  }

  // The op that does the work of `producer`, which writes `operand` of this op,
  // and of this op. Its operands are those of `producer`, then those of this op
  // without `operand`.
  virtual FusedOp FuseWith(const Op& producer, int operand) const { return {}; }

  // The operand that `result` may overwrite. Forward() then gets both in the
  // same memory.
  virtual std::optional<int> ResultMayOverwrite(int result) const {
    return std::nullopt;
  }
  // What the gradient of `operand` may overwrite, first choice first.
  virtual std::vector<Overwritable> GradientMayOverwrite(int operand) const {
    return {};
  }
  // True if Forward() allocates its results (a library call returns them).
  virtual bool AllocatesResults() const { return false; }

  // Peak bytes during a call beyond operands, results and gradients.
  virtual int64_t ForwardWorkspaceBytes() const { return 0; }
  virtual int64_t BackwardWorkspaceBytes(Positions wanted) const { return 0; }

  // The matrix products of all calls whose algorithms a run chooses before it
  // starts (framework/ops/linear/product_choices.h).
  virtual std::vector<MatrixProduct> Products() const { return {}; }

  virtual Cost ForwardCost() const { return {.bytes = ForwardBytes()}; }
  virtual Cost BackwardCost(Positions wanted) const {
    return {.bytes = BackwardBytes(wanted)};
  }

  // False if the call makes the host wait, or depends on host values.
  virtual bool capturable() const { return true; }
  // True if the op draws from LibTorch's generators; recomputation restores
  // them.
  virtual bool random() const { return false; }

  // Sets the types of operands and results, when the op joins a program.
  void SetTypes(std::vector<TensorType> operands,
                std::vector<TensorType> results) {
    operands_ = std::move(operands);
    results_ = std::move(results);
  }
  const TensorType& operand(int i) const { return operands_[i]; }
  const TensorType& result(int i) const { return results_[i]; }
  int num_operands() const { return static_cast<int>(operands_.size()); }
  int num_results() const { return static_cast<int>(results_.size()); }

 protected:
  // The bytes of every operand and result, once each.
  int64_t ForwardBytes() const;
  // The bytes of everything that ReadsInBackward() names, of the results'
  // gradients and of the wanted gradients, once each.
  int64_t BackwardBytes(Positions wanted) const;

 private:
  std::vector<TensorType> operands_, results_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_OP_H_
