#include "framework/ops/relu_squared/relu_squared.h"

#include <memory>

#include "ATen/ATen.h"

namespace tessera {
namespace {

class ReluSquaredOp : public Op {
 public:
  absl::string_view kind() const override { return "relu_squared"; }
  std::string kernel() const override { return "ATen"; }

  void Forward(const ForwardArgs& args) const override {
    at::Tensor h = args.results[0];
    at::clamp_min_out(h, args.operands[0], 0);
    h.mul_(h);
  }
  // The first two results are exact in every dtype, so dx is rounded only once.
  void Backward(const BackwardArgs& args) const override {
    at::Tensor dx = args.d_operands[0].grad;
    at::clamp_min_out(dx, args.operands[0], 0);
    dx.mul_(2).mul_(args.d_results[0]);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {0}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, 0}};
  }

  Cost ForwardCost() const override {
    return {.flops = 2.0 * static_cast<double>(result(0).numel()),
            .bytes = ForwardBytes()};
  }
  Cost BackwardCost(Positions wanted) const override {
    return {.flops = 3.0 * static_cast<double>(result(0).numel()),
            .bytes = BackwardBytes(wanted)};
  }
};

}  // namespace

Value ReluSquared(ProgramBuilder& b, Value x) {
  return b.Add(std::make_unique<ReluSquaredOp>(), "relu_squared", {x},
               {b.type(x)})[0];
}

}  // namespace tessera
