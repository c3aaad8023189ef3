#include "framework/ops/swiglu/swiglu.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/linear/few_rows.h"
#include "framework/ops/swiglu/swiglu_kernels.h"

namespace tessera {
namespace {

class SwiGluOp : public OpWithKernels<SwiGluKernels> {
 public:
  using OpWithKernels::OpWithKernels;

  absl::string_view kind() const override { return "swiglu"; }

  void Forward(const ForwardArgs& args) const override {
    kernels().forward(args.operands[0], args.results[0]);
  }
  void Backward(const BackwardArgs& args) const override {
    kernels().backward(args.operands[0], args.d_results[0],
                       args.d_operands[0].grad);
  }

  FusedOp FuseWith(const Op& producer, int) const override {
    return FewRowsThen(producer, AfterFewRows::kSwiGlu, result(0).dtype);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {0}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, 0}};
  }

  Cost ForwardCost() const override {
    return {.flops = 5.0 * static_cast<double>(result(0).numel()),
            .bytes = ForwardBytes()};
  }
  Cost BackwardCost(Positions wanted) const override {
    return {.flops = 12.0 * static_cast<double>(result(0).numel()),
            .bytes = BackwardBytes(wanted)};
  }
};

}  // namespace

Value SwiGlu(ProgramBuilder& b, Value ab) {
  TensorType type = b.type(ab);
  TESSERA_CHECK(type.shape.back() % 2 == 0, "columns: ", type.shape.back());
  type.shape.back() /= 2;
  return b.Add(
      std::make_unique<SwiGluOp>(KernelKindFor(b.target().device, type.dtype)),
      "swiglu", {ab}, {std::move(type)})[0];
}

}  // namespace tessera
