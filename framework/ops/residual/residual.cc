#include "framework/ops/residual/residual.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/linear/few_rows.h"

namespace tessera {
namespace {

constexpr int kX = 0, kDelta = 1;

class AddResidualOp : public Op {
 public:
  absl::string_view kind() const override { return "add_residual"; }
  std::string kernel() const override { return "ATen"; }

  // One launch, also for two dtypes: the addition converts its narrower operand
  // as it reads.
  void Forward(const ForwardArgs& args) const override {
    at::Tensor sum = args.results[0];
    at::add_out(sum, args.operands[kX], args.operands[kDelta]);
  }
  void Backward(const BackwardArgs& args) const override {
    args.d_operands[kDelta].grad.copy_(args.d_results[0]);
  }

  BackwardReads ReadsInBackward(Positions) const override { return {}; }
  std::optional<int> PassesGradient(int position) const override {
    if (operand(position).dtype != result(0).dtype) return std::nullopt;
    return 0;
  }
  std::optional<int> ResultMayOverwrite(int) const override { return kDelta; }

  FusedOp FuseWith(const Op& producer, int position) const override {
    if (position != kDelta) return {};
    return FewRowsThen(producer, AfterFewRows::kAdd, result(0).dtype);
  }

  Cost ForwardCost() const override {
    return {.flops = static_cast<double>(result(0).numel()),
            .bytes = ForwardBytes()};
  }
};

}  // namespace

bool IsAddResidual(const Op& op) {
  return dynamic_cast<const AddResidualOp*>(&op) != nullptr;
}

Value AddResidual(ProgramBuilder& b, Value x, Value delta) {
  const TensorType type = b.type(x);
  TESSERA_CHECK(type.shape == b.type(delta).shape, "x: ", ToString(type),
                ", delta: ", ToString(b.type(delta)));
  return b.Add(std::make_unique<AddResidualOp>(), "add", {x, delta}, {type})[0];
}

}  // namespace tessera
