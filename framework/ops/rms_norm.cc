#include "framework/ops/rms_norm.h"

#include <algorithm>
#include <memory>

#include "ATen/ATen.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/op_device.h"

namespace tessera {
namespace {

constexpr int kX = 0, kGain = 1;  // operands
constexpr int kY = 0, kR = 1;     // results

class RmsNormOp : public Op {
 public:
  RmsNormOp(double eps, OpDevice device) : eps_(eps), device_(device) {}

  absl::string_view kind() const override { return "rms_norm"; }
  std::string kernel() const override {
    return device_.KernelName(operand(kX).dtype);
  }

  void Forward(const ForwardArgs& args) const override {
    TESSERA_DISPATCH(args.operands[kX], RmsNormForward, args.operands[kX],
                     args.operands[kGain], eps_, args.results[kY],
                     args.results[kR]);
  }

  void Backward(const BackwardArgs& args) const override {
    TESSERA_DISPATCH(args.operands[kX], RmsNormBackward, args.d_results[kY],
                     args.operands[kX], args.results[kR], args.operands[kGain],
                     args.d_operands[kGain], args.d_operands[kX].grad);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kX, kGain}, .results = {kR}};
  }

  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    const int64_t width = operand(kX).shape.back();
    const int64_t rows = operand(kX).numel() / width;
    // The gain's gradient as partial sums; dx, where nobody wants it.
    const int64_t groups =
        device_.cuda ? std::min<int64_t>(rows, 2 * device_.multiprocessors)
                     : (rows + 63) / 64;
    return (wanted.Has(kGain) ? groups * width * 4 : 0) +
           (wanted.Has(kX) ? 0 : operand(kX).bytes());
  }

  Cost ForwardCost() const override {
    // x^2, its sum, x r g.
    return {.flops = 4.0 * static_cast<double>(operand(kX).numel()),
            .bytes = ForwardBytes()};
  }
  Cost BackwardCost(Positions wanted) const override {
    return {.flops = 9.0 * static_cast<double>(operand(kX).numel()),
            .bytes = BackwardBytes(wanted)};
  }

 private:
  const double eps_;
  const OpDevice device_;
};

}  // namespace

Value RmsNorm(ProgramBuilder& b, Value x, Weight gain, double eps) {
  const TensorType from = b.type(x);
  const Value g = b.Read(gain, b.dtype(OpClass::kMasterWeights));
  return b.Add(
      std::make_unique<RmsNormOp>(eps, OpDevice::Of(b.target().device)),
      b.ShortName(gain), {x, g},
      {{from.shape, b.dtype(OpClass::kActivation)},
       {{from.numel() / from.shape.back()}, b.dtype(OpClass::kNormStatistics)}},
      {"", "r"})[0];
}

}  // namespace tessera
