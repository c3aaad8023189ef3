#ifndef FRAMEWORK_PROGRAM_OP_H_
#define FRAMEWORK_PROGRAM_OP_H_

#include <cstdint>
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

// Where a backward pass writes the gradient of one operand.
struct GradTarget {
  at::Tensor grad;          // undefined: nobody wants this gradient
  bool accumulate = false;  // += instead of =; only for parameters
};

// Writes or adds `value`, rounding once to the dtype of `target.grad`.
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
  bool Has(int position) const { return (bits_ >> position & 1) != 0; }
  bool empty() const { return bits_ == 0; }

 private:
  uint64_t bits_ = 0;
};

struct ForwardArgs {
  absl::Span<const at::Tensor> operands;
  // Contiguous and uninitialised, of the results' types; undefined where
  // AllocatesResults(), and then the op assigns them.
  absl::Span<at::Tensor> results;
  PhaseObserver* phases = nullptr;
};

struct BackwardArgs {
  // Undefined except for what BackwardReads() names.
  absl::Span<const at::Tensor> operands, results;
  // Undefined where no gradient reaches a result.
  absl::Span<const at::Tensor> d_results;
  absl::Span<const GradTarget> d_operands;
  PhaseObserver* phases = nullptr;
};

// What a backward pass reads besides the gradients of the results.
struct BackwardReads {
  Positions operands, results;
};

// An operand or result whose memory a gradient may take.
struct Overwritable {
  enum class What { kOperand, kResult, kResultGradient };
  What what = What::kOperand;
  int position = 0;
};

// Work of one call. Bytes are those that must move through device memory when
// every operand is read once and every result written once.
struct Cost {
  double flops = 0;
  int64_t bytes = 0;
  // Of `flops`, those of matrix products (tensor cores).
  double product_flops = 0;

  Cost& operator+=(const Cost& other);
};

// One operation of a program: immutable, knows shapes and no tensors, so one
// object serves every run of the program.
//
// An op says what its backward reads and what may be overwritten; whether that
// memory is free is known to the plan alone (lifetime.h).
class Op {
 public:
  virtual ~Op() = default;

  // The field's name of the operation, also that of its folder: "linear".
  virtual absl::string_view kind() const = 0;
  // What executes it where the program was built for: "cuBLAS", "FLASH_CUDA".
  virtual std::string kernel() const = 0;

  // Both enqueue work on the current stream and throw LibTorch's exceptions
  // (ThrowIfError() for a status).
  virtual void Forward(const ForwardArgs& args) const = 0;
  // Writes the gradients that d_operands asks for.
  virtual void Backward(const BackwardArgs& args) const = 0;

  // What Backward() reads when it is asked for the gradients of `wanted`.
  virtual BackwardReads ReadsInBackward(Positions wanted) const = 0;
  // Gradients of parameters can be asked for in another call than those of
  // activations.
  virtual bool separable() const { return false; }
  // The result whose gradient is also that of `operand`, unchanged: an addition
  // passes it on and computes nothing.
  virtual std::optional<int> PassesGradient(int operand) const {
    return std::nullopt;
  }

  // The operand over which `result` may be written. Forward() then finds both
  // in the same memory.
  virtual std::optional<int> ResultMayOverwrite(int result) const {
    return std::nullopt;
  }
  // What the gradient of `operand` may be written over, first choice first.
  virtual std::vector<Overwritable> GradientMayOverwrite(int operand) const {
    return {};
  }
  // Forward() makes its results itself (a library's call that returns them).
  virtual bool AllocatesResults() const { return false; }

  // Most bytes alive during a call beyond operands, results and gradients.
  virtual int64_t ForwardWorkspaceBytes() const { return 0; }
  virtual int64_t BackwardWorkspaceBytes(Positions wanted) const { return 0; }

  virtual Cost ForwardCost() const { return {.bytes = ForwardBytes()}; }
  virtual Cost BackwardCost(Positions wanted) const {
    return {.bytes = BackwardBytes(wanted)};
  }

  // False: the call makes the host wait, or depends on values of the host.
  virtual bool capturable() const { return true; }
  // Draws from LibTorch's generators; run again with the same draws.
  virtual bool random() const { return false; }

  // The types of operands and results; set when the op joins a program.
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
  // Every operand and result once.
  int64_t ForwardBytes() const;
  // Everything ReadsInBackward() names, the results' gradients and the wanted
  // gradients, once each.
  int64_t BackwardBytes(Positions wanted) const;

 private:
  std::vector<TensorType> operands_, results_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_OP_H_
