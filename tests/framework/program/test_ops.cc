#include "tests/framework/program/test_ops.h"

#include <memory>
#include <utility>
#include <vector>

#include "ATen/ATen.h"

namespace tessera::testing {
namespace {

class TestOp : public Op {
 public:
  std::string kernel() const override { return "test"; }
};

class ProductOp : public TestOp {
 public:
  absl::string_view kind() const override { return "product"; }
  void Forward(const ForwardArgs& args) const override {
    at::Tensor y = args.results[0];
    at::mm_out(y, args.operands[0], args.operands[1].t());
  }
  void Backward(const BackwardArgs& args) const override {
    const at::Tensor& dy = args.d_results[0];
    if (args.d_operands[1].grad.defined()) {
      WriteGrad(args.d_operands[1], at::mm(dy.t(), args.operands[0]));
    }
    if (at::Tensor dx = args.d_operands[0].grad; dx.defined()) {
      at::mm_out(dx, dy, args.operands[1]);
    }
  }
  BackwardReads ReadsInBackward(Positions wanted) const override {
    BackwardReads reads;
    if (wanted.Has(0)) reads.operands.Add(1);
    if (wanted.Has(1)) reads.operands.Add(0);
    return reads;
  }
  bool separable() const override { return true; }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, 0}};
  }
  Cost ForwardCost() const override {
    const double flops = 2.0 * static_cast<double>(operand(0).numel()) *
                         static_cast<double>(result(0).shape.back());
    return {.flops = flops, .bytes = ForwardBytes(), .product_flops = flops};
  }
};

class SumOp : public TestOp {
 public:
  absl::string_view kind() const override { return "sum"; }
  void Forward(const ForwardArgs& args) const override {
    at::Tensor y = args.results[0];
    at::add_out(y, args.operands[0], args.operands[1]);
  }
  void Backward(const BackwardArgs&) const override {}
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
  std::optional<int> PassesGradient(int) const override { return 0; }
  std::optional<int> ResultMayOverwrite(int) const override { return 1; }
};

class NegativeOp : public TestOp {
 public:
  absl::string_view kind() const override { return "negative"; }
  void Forward(const ForwardArgs& args) const override {
    at::Tensor y = args.results[0];
    if (!y.is_alias_of(args.operands[0])) y.copy_(args.operands[0]);
    y.neg_();
  }
  void Backward(const BackwardArgs& args) const override {
    at::Tensor dx = args.d_operands[0].grad;
    if (!dx.is_alias_of(args.d_results[0])) dx.copy_(args.d_results[0]);
    dx.neg_();
  }
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
  std::optional<int> ResultMayOverwrite(int) const override { return 0; }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kResultGradient, 0}};
  }
};

class SquareOp : public TestOp {
 public:
  absl::string_view kind() const override { return "square"; }
  void Forward(const ForwardArgs& args) const override {
    args.results[0].copy_(args.operands[0].square());
  }
  void Backward(const BackwardArgs& args) const override {
    args.d_operands[0].grad.copy_(2 * args.operands[0] * args.d_results[0]);
  }
  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {0}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, 0}};
  }
};

class ExponentialOp : public TestOp {
 public:
  absl::string_view kind() const override { return "exp"; }
  void Forward(const ForwardArgs& args) const override {
    args.results[0].copy_(args.operands[0].exp());
  }
  void Backward(const BackwardArgs& args) const override {
    args.d_operands[0].grad.copy_(args.results[0] * args.d_results[0]);
  }
  BackwardReads ReadsInBackward(Positions) const override {
    return {.results = {0}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kResult, 0}};
  }
};

class TotalOp : public TestOp {
 public:
  absl::string_view kind() const override { return "total"; }
  void Forward(const ForwardArgs& args) const override {
    args.results[0].copy_(args.operands[0].sum());
  }
  void Backward(const BackwardArgs& args) const override {
    args.d_operands[0].grad.copy_(args.d_results[0].expand(operand(0).shape));
  }
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
};

template <typename T>
Value Pointwise(ProgramBuilder& b, std::vector<Value> operands) {
  auto op = std::make_unique<T>();
  const std::string name(op->kind());
  const TensorType type = b.type(operands[0]);
  return b.Add(std::move(op), name, std::move(operands), {type})[0];
}

}  // namespace

Value Product(ProgramBuilder& b, Value x, Weight weight) {
  const Value w = b.Read(weight, at::kFloat);
  TensorType type = b.type(x);
  type.shape.back() = b.type(w).shape[0];
  return b.Add(std::make_unique<ProductOp>(), b.ShortName(weight), {x, w},
               {type})[0];
}

Value Sum(ProgramBuilder& b, Value x, Value y) {
  return Pointwise<SumOp>(b, {x, y});
}
Value Negative(ProgramBuilder& b, Value x) {
  return Pointwise<NegativeOp>(b, {x});
}
Value Square(ProgramBuilder& b, Value x) { return Pointwise<SquareOp>(b, {x}); }
Value Exponential(ProgramBuilder& b, Value x) {
  return Pointwise<ExponentialOp>(b, {x});
}

Value Total(ProgramBuilder& b, Value x) {
  return b.Add(std::make_unique<TotalOp>(), "total", {x},
               {{{}, b.type(x).dtype}})[0];
}

Weight Matrix(ProgramBuilder& b, const std::string& name, int64_t out,
              int64_t in) {
  return b.Parameter(
      {.name = name, .members = {{name, {out, in}, Init::kLinear}}});
}

ProgramTarget CpuTarget() {
  ProgramTarget target;
  target.device = CpuDevice();
  target.precision = PrecisionPolicy::Uniform(at::kFloat);
  return target;
}

}  // namespace tessera::testing
