#include "framework/ops/soft_cap/soft_cap.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/ops/forward_only_op.h"

namespace tessera {
namespace {

class SoftCapOp : public ForwardOnlyOp {
 public:
  explicit SoftCapOp(float cap) : cap_(cap) {}

  absl::string_view kind() const override { return "soft_cap"; }

  void Forward(const ForwardArgs& args) const override {
    at::Tensor y = args.results[0];
    y.copy_(args.operands[0]).div_(cap_).tanh_().mul_(cap_);
  }

  Cost ForwardCost() const override {
    return {.flops = 3.0 * static_cast<double>(result(0).numel()),
            .bytes = ForwardBytes()};
  }

 private:
  const float cap_;
};

}  // namespace

Value SoftCap(ProgramBuilder& b, Value x, float cap) {
  return b.Add(std::make_unique<SoftCapOp>(cap), "soft_cap", {x},
               {{b.type(x).shape, b.dtype(OpClass::kLoss)}})[0];
}

}  // namespace tessera
