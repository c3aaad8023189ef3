#include "framework/ops/rms_norm/rms_norm.h"

#include <algorithm>
#include <memory>

#include "ATen/ATen.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"

namespace tessera {
namespace {

// The CUDA kernels take x in FP32 or in y's dtype, the CPU loops everything in
// FP32.
KernelKind KindFor(const DeviceInfo& device, at::ScalarType x, at::ScalarType y,
                   at::ScalarType gain, at::ScalarType statistics) {
  const KernelKind kind = KernelKindFor(device, y);
  const bool fits = kind == KernelKind::kCpu ? x == y && gain == y
                                             : x == y || x == at::kFloat;
  return fits && statistics == at::kFloat ? kind : KernelKind::kReference;
}

constexpr int kX = 0, kGain = 1;  // operands
constexpr int kY = 0, kR = 1;     // results

class RmsNormOp : public OpWithKernels<RmsNormKernels> {
 public:
  RmsNormOp(KernelKind kind, double eps, int multiprocessors)
      : OpWithKernels(kind), eps_(eps), multiprocessors_(multiprocessors) {}

  absl::string_view kind() const override { return "rms_norm"; }

  void Forward(const ForwardArgs& args) const override {
    kernels().forward(args.operands[kX], args.operands[kGain], eps_,
                      args.results[kY], args.results[kR]);
  }

  void Backward(const BackwardArgs& args) const override {
    kernels().backward(args.d_results[kY], args.operands[kX], args.results[kR],
                       args.operands[kGain], args.d_operands[kGain],
                       args.d_operands[kX].grad);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kX, kGain}, .results = {kR}};
  }

  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    const int64_t width = operand(kX).shape.back();
    const int64_t rows = operand(kX).numel() / width;
    // The gain's gradient as partial sums, and dx if it is not wanted.
    const int64_t sums =
        kernel_kind() == KernelKind::kCpu
            ? (rows + kCpuRowsPerSum - 1) / kCpuRowsPerSum
            : std::min(rows, kSumsPerMultiprocessor * multiprocessors_);
    return (wanted.Has(kGain) ? sums * width * 4 : 0) +
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
  const int multiprocessors_;
};

}  // namespace

Value RmsNorm(ProgramBuilder& b, Value x, Weight gain, double eps) {
  const TensorType from = b.type(x);
  const Value g = b.Read(gain, b.dtype(OpClass::kMasterWeights));
  const DeviceInfo& device = b.target().device;
  const at::ScalarType y = b.dtype(OpClass::kActivation);
  const at::ScalarType statistics = b.dtype(OpClass::kNormStatistics);
  const KernelKind kind =
      KindFor(device, from.dtype, y, b.type(g).dtype, statistics);
  return b.Add(
      std::make_unique<RmsNormOp>(kind, eps, device.multiprocessors),
      b.ShortName(gain), {x, g},
      {{from.shape, y}, {{from.numel() / from.shape.back()}, statistics}},
      {"", "r"})[0];
}

}  // namespace tessera
