#include "framework/ops/rope/rope.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/rope/rope_kernels.h"

namespace tessera {
namespace {

constexpr int kX = 0, kCos = 1, kSin = 2, kPositions = 3;  // operands

class RopeOp : public OpWithKernels<RopeKernels> {
 public:
  RopeOp(KernelKind kind, RopeLayout layout, int64_t rotated_heads)
      : OpWithKernels(kind), layout_(layout), rotated_heads_(rotated_heads) {}

  Rotation rotation() const { return {layout_, rotated_heads_}; }

  absl::string_view kind() const override { return "rope"; }

  void Forward(const ForwardArgs& args) const override {
    RotateInto(args.operands[kX], args.operands, /*inverse=*/false,
               args.results[0]);
  }
  void Backward(const BackwardArgs& args) const override {
    RotateInto(args.d_results[0], args.operands, /*inverse=*/true,
               args.d_operands[kX].grad);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    Positions read = Positions::All(num_operands());
    read.Remove(kX);
    return {.operands = read};
  }
  std::optional<int> ResultMayOverwrite(int) const override { return kX; }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kResultGradient, 0}};
  }

  Cost ForwardCost() const override {
    return {.flops = Flops(), .bytes = RotatedBytes()};
  }
  Cost BackwardCost(Positions) const override { return ForwardCost(); }

 private:
  void RotateInto(const at::Tensor& x, absl::Span<const at::Tensor> operands,
                  bool inverse, at::Tensor out) const {
    if (!out.is_alias_of(x)) out.copy_(x);
    RopeTable table = {
        .cos = operands[kCos], .sin = operands[kSin], .layout = layout_};
    if (operands.size() > kPositions) {
      table.token_positions = operands[kPositions];
    }
    kernels().rotate(out, table, rotated_heads_, inverse);
  }

  // Read and written once, in place.
  int64_t RotatedBytes() const {
    const TensorType& x = operand(kX);
    return 2 * x.bytes() / x.shape[2] * rotated_heads_;
  }
  double Flops() const {
    const TensorType& x = operand(kX);
    return 3.0 * static_cast<double>(x.numel() / x.shape[2] * rotated_heads_);
  }

  const RopeLayout layout_;
  const int64_t rotated_heads_;
};

at::Tensor Scaled(const at::Tensor& frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequency;
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const at::Tensor turns =
      frequency * (static_cast<double>(scaling.original_context) / (2 * M_PI));
  const at::Tensor kept = ((turns - low) / (high - low)).clamp(0, 1);
  return frequency * ((1 - kept) / scaling.factor + kept);
}

}  // namespace

RopeTable RopeTable::Create(int64_t positions, int64_t head_dim,
                            const RopeOptions& options, at::Device device) {
  TESSERA_CHECK(head_dim % 2 == 0, "head_dim: ", head_dim);
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::kDouble) / -static_cast<double>(head_dim);
  const at::Tensor frequency =
      Scaled(at::pow(at::scalar_tensor(options.theta, at::kDouble), exponent),
             options.scaling);
  const at::Tensor angle =
      at::arange(positions, at::kDouble).unsqueeze(1) * frequency;
  return {.cos = angle.cos().to(device, at::kFloat),
          .sin = angle.sin().to(device, at::kFloat),
          .layout = options.layout};
}

RopeAngles MakeRopeAngles(ProgramBuilder& b, int64_t positions,
                          int64_t head_dim, const RopeOptions& options) {
  const auto table = [=](at::Device device) {
    return RopeTable::Create(positions, head_dim, options, device);
  };
  const TensorType type = {{positions, head_dim / 2}, at::kFloat};
  return {.cos = b.Constant("rope.cos", type,
                            [table](at::Device d) { return table(d).cos; }),
          .sin = b.Constant("rope.sin", type,
                            [table](at::Device d) { return table(d).sin; }),
          .layout = options.layout};
}

Value Rope(ProgramBuilder& b, Value qkv, const RopeAngles& angles,
           int64_t rotated_heads) {
  const TensorType type = b.type(qkv);
  const std::vector<int64_t>& table = b.type(angles.cos).shape;
  TESSERA_CHECK(type.shape.size() == 4, "qkv must be [B, S, heads, D]");
  TESSERA_CHECK(type.shape[1] <= table[0], "S: ", type.shape[1],
                "; positions in the table: ", table[0]);
  TESSERA_CHECK(type.shape[3] == 2 * table[1], "D: ", type.shape[3]);
  TESSERA_CHECK(rotated_heads <= type.shape[2], "heads: ", type.shape[2]);
  std::vector<Value> operands = {qkv, angles.cos, angles.sin};
  if (angles.positions.has_value()) {
    const TensorType positions = {{type.shape[0], type.shape[1]}, at::kLong};
    TESSERA_CHECK(b.type(*angles.positions) == positions,
                  "positions: ", ToString(b.type(*angles.positions)));
    operands.push_back(*angles.positions);
  }
  return b.Add(
      std::make_unique<RopeOp>(KernelKindFor(b.target().device, type.dtype),
                               angles.layout, rotated_heads),
      "rope", std::move(operands), {type})[0];
}

std::optional<Rotation> RotationOf(const Op& op) {
  const auto* const rope = dynamic_cast<const RopeOp*>(&op);
  if (rope == nullptr) return std::nullopt;
  return rope->rotation();
}

}  // namespace tessera
