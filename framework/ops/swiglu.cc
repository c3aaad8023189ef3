#include "framework/ops/swiglu.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/op_device.h"

namespace tessera {
namespace {

class SwiGluOp : public Op {
 public:
  explicit SwiGluOp(OpDevice device) : device_(device) {}

  absl::string_view kind() const override { return "swiglu"; }
  std::string kernel() const override {
    return device_.KernelName(operand(0).dtype);
  }

  void Forward(const ForwardArgs& args) const override {
    TESSERA_DISPATCH(args.operands[0], SwiGluForward, args.operands[0],
                     args.results[0]);
  }
  void Backward(const BackwardArgs& args) const override {
    TESSERA_DISPATCH(args.operands[0], SwiGluBackward, args.operands[0],
                     args.d_results[0], args.d_operands[0].grad);
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

 private:
  const OpDevice device_;
};

}  // namespace

Value SwiGlu(ProgramBuilder& b, Value ab) {
  TensorType type = b.type(ab);
  TESSERA_CHECK(type.shape.back() % 2 == 0, "columns: ", type.shape.back());
  type.shape.back() /= 2;
  return b.Add(std::make_unique<SwiGluOp>(OpDevice::Of(b.target().device)),
               "swiglu", {ab}, {std::move(type)})[0];
}

}  // namespace tessera
