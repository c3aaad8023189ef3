#ifndef FRAMEWORK_PROGRAM_PROGRAM_H_
#define FRAMEWORK_PROGRAM_PROGRAM_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "framework/cuda/device.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"
#include "framework/program/op.h"
#include "framework/program/value.h"

namespace tessera {

struct ProductChoices;

// An op of a program and the values it reads and writes.
struct OpNode {
  std::unique_ptr<const Op> op;
  std::string name;  // "block_3/ffn/w13"
  int scope = 0;     // index into Program::scopes()
  std::vector<Value> operands, results;
};

// A named part of the model: ops [first_op, end_op). Scopes nest.
struct ProgramScope {
  std::string name;  // "ffn"; empty for the whole program
  int parent = -1;
  int first_op = 0, end_op = 0;
};

// A tensor that ops read and that never changes, such as a table of angles.
struct ProgramConstant {
  Value value;
  std::function<at::Tensor(at::Device)> make;
};

// A model as a list of ops in execution order, in which every value is written
// once. It holds no tensors, so it can be built before anything is allocated,
// even for a device that is not present. Everything that must know a step
// before it runs reads this list: memory plan, FLOPs, the printed step,
// schedules.
class Program {
 public:
  Program(Program&&) = default;
  Program& operator=(Program&&) = default;

  absl::Span<const OpNode> ops() const { return ops_; }
  absl::Span<const ValueInfo> values() const { return values_; }
  const ValueInfo& info(Value value) const { return values_[value.index]; }
  // In the order of first use, which is also the order of their gradients in
  // the flat buffer.
  const std::vector<ParameterBlockSpec>& parameters() const {
    return parameters_;
  }
  absl::Span<const ProgramScope> scopes() const { return scopes_; }
  absl::Span<const ProgramConstant> constants() const { return constants_; }
  // The values that a run leaves to its caller.
  absl::Span<const Value> outputs() const { return outputs_; }

  // "block_3/ffn"
  std::string ScopePath(int scope) const;

 private:
  friend class ProgramBuilder;
  friend class ProgramFuser;
  Program() = default;

  std::vector<OpNode> ops_;
  std::vector<ValueInfo> values_;
  std::vector<ParameterBlockSpec> parameters_;
  std::vector<ProgramScope> scopes_;
  std::vector<ProgramConstant> constants_;
  std::vector<Value> outputs_;
};

// A parameter block while a program is built.
struct Weight {
  int parameter = -1;  // index into Program::parameters()
};

// The device, precision, frozen parameters and those of Muon that a program is
// built for.
struct ProgramTarget {
  DeviceInfo device;
  PrecisionPolicy precision;
  bool deterministic = false;
  bool forward_only = false;  // the program has no backward pass
  // The algorithms of matrix products (framework/ops/linear/product_choices.h),
  // chosen before the program runs; null for cuBLASLt's first proposals.
  std::shared_ptr<const ProductChoices> products;
  // Patterns over parameter names. Blocks that match are not trained.
  std::vector<std::string> frozen;
  // Patterns over parameter names. Muon updates the trained blocks of matrices
  // that match; AdamW updates all others.
  std::vector<std::string> muon;
  bool muon_row_moments = false;  // NorMuon
};

// Collects the ops of a model:
//
//   ProgramBuilder b(target);
//   Value y = Linear(b, RmsNorm(b, x, ln1), qkv);
//
// where Linear() and RmsNorm() come from the folders of their ops; each makes
// its op and calls Add(). Ops run in the order of these calls. C++ does not
// define the order in which arguments are evaluated, so at most one argument
// may be such a call.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(ProgramTarget target);

  const ProgramTarget& target() const { return target_; }
  at::ScalarType dtype(OpClass op) const { return target_.precision[op]; }
  // Returns by value, because adding a value may move the others.
  TensorType type(Value value) const {
    return program_.values_[value.index].type;
  }

  // If `needs_grad`, backward leaves the gradient of this input to the caller.
  Value Input(absl::string_view name, TensorType type, bool needs_grad = false);
  // `make` is called once for each device that runs the program.
  Value Constant(absl::string_view name, TensorType type,
                 std::function<at::Tensor(at::Device)> make);

  // Declares a parameter block. Blocks must be read in the order in which they
  // are declared; Build() checks this.
  Weight Parameter(ParameterBlockSpec spec);
  // The block in `dtype`, the dtype in which an op reads it: that of the master
  // weights or of the weights in matrix products.
  Value Read(Weight weight, at::ScalarType dtype);
  // "qkv" of "layers.3.attn.qkv", "w2" of "layers.3.ffn.w2.weight".
  absl::string_view ShortName(Weight weight) const;
  const ParameterBlockSpec& spec(Weight weight) const {
    return program_.parameters_[weight.parameter];
  }

  // Appends an op. `name` is the last part of the op's name. Its results get
  // the same name, or NAME.SUFFIX if `suffixes[i]` is not empty.
  std::vector<Value> Add(std::unique_ptr<Op> op, absl::string_view name,
                         std::vector<Value> operands,
                         std::vector<TensorType> results,
                         std::vector<std::string> suffixes = {});

  void Output(Value value) { program_.outputs_.push_back(value); }

  // Ops that are added during its lifetime belong to the scope.
  class Scope {
   public:
    Scope(ProgramBuilder& builder, absl::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ProgramBuilder& builder_;
  };

  // NotFound if a pattern of ProgramTarget matches nothing. InvalidArgument if
  // its frozen or its muon patterns together match only part of a fused block.
  absl::StatusOr<Program> Build() &&;

 private:
  absl::Status CheckFrozenPatterns() const;
  absl::Status CheckMuonPatterns() const;

  const ProgramTarget target_;
  Program program_;
  int scope_ = 0;
  int parameters_read_ = 0;
  std::map<std::pair<int, at::ScalarType>, Value> read_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_PROGRAM_H_
