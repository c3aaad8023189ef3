#include "framework/program/autograd_op.h"

#include <memory>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "framework/base/check.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera {
namespace {

class WrappedOp : public Op {
 public:
  explicit WrappedOp(AutogradFunction function)
      : function_(std::move(function)) {}

  absl::string_view kind() const override { return function_.name; }
  std::string kernel() const override { return "autograd"; }

  void Forward(const ForwardArgs& args) const override {
    args.results[0].copy_(
        function_.function({args.operands.begin(), args.operands.end()}));
  }

  void Backward(const BackwardArgs& args) const override {
    // The executor runs ops below autograd's dispatch layer.
    const c10::impl::ForceDispatchKeyGuard with_autograd{
        c10::impl::LocalDispatchKeySet(c10::impl::PODLocalDispatchKeySet{})};
    const at::AutoGradMode recording(true);
    std::vector<at::Tensor> leaves, wanted;
    for (size_t i = 0; i < args.operands.size(); ++i) {
      leaves.push_back(args.operands[i].detach());
      if (!args.d_operands[i].grad.defined()) continue;
      leaves.back().requires_grad_();
      wanted.push_back(leaves.back());
    }
    const at::Tensor y = function_.function(leaves);
    const std::vector<at::Tensor> gradients = torch::autograd::grad(
        {y}, wanted, {args.d_results[0]}, /*retain_graph=*/std::nullopt,
        /*create_graph=*/false, /*allow_unused=*/true);
    const at::NoGradGuard no_grad;
    size_t next = 0;
    for (const GradTarget& target : args.d_operands) {
      if (!target.grad.defined()) continue;
      const at::Tensor& gradient = gradients[next++];
      WriteGrad(target,
                gradient.defined() ? gradient : at::zeros_like(target.grad));
    }
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = Positions::All(num_operands())};
  }
  bool random() const override { return function_.random; }
  int64_t ForwardWorkspaceBytes() const override {
    return result(0).bytes() + function_.forward_workspace_bytes;
  }
  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    int64_t bytes = result(0).bytes() + function_.backward_workspace_bytes;
    for (int i = 0; i < num_operands(); ++i) {
      if (wanted.Has(i)) bytes += operand(i).bytes();
    }
    return bytes;
  }
  Cost ForwardCost() const override {
    Cost cost = function_.forward_cost;
    if (cost.bytes == 0) cost.bytes = ForwardBytes();
    return cost;
  }
  // Backward runs the function again and then differentiates it: twice the work
  // of forward.
  Cost BackwardCost(Positions wanted) const override {
    const Cost forward = ForwardCost();
    return {.flops = 3 * forward.flops,
            .bytes = forward.bytes + BackwardBytes(wanted),
            .product_flops = 3 * forward.product_flops};
  }

 private:
  const AutogradFunction function_;
};

}  // namespace

Value AutogradOp(ProgramBuilder& b, AutogradFunction function,
                 std::vector<Value> operands, TensorType result) {
  const std::string name = function.name;
  return b.Add(std::make_unique<WrappedOp>(std::move(function)), name,
               std::move(operands), {std::move(result)})[0];
}

}  // namespace tessera
