#include "framework/ops/rms_norm/rms_norm.h"

#include <memory>
#include <vector>

#include "ATen/ATen.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/residual/residual.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"

namespace tessera {
namespace {

// The CUDA kernels take x in FP32 or in y's dtype and no longer rows than
// kLongestCudaRow, the CPU loops everything in FP32.
KernelKind KindFor(const DeviceInfo& device, const TensorType& x,
                   at::ScalarType y, at::ScalarType gain,
                   at::ScalarType statistics) {
  const KernelKind kind = KernelKindFor(device, y);
  const bool fits = kind == KernelKind::kCpu
                        ? x.dtype == y && gain == y
                        : (x.dtype == y || x.dtype == at::kFloat) &&
                              x.shape.back() <= RmsNormKernels::kLongestCudaRow;
  return fits && statistics == at::kFloat ? kind : KernelKind::kReference;
}

constexpr int kX = 0, kGain = 1;  // operands
constexpr int kY = 0, kR = 1;     // results

// Of both ops below: the gain's gradient as partial sums.
int64_t PartialSumBytes(KernelKind kind, const TensorType& x,
                        int multiprocessors) {
  const int64_t width = x.shape.back();
  const int64_t rows = x.numel() / width;
  const int64_t sums = kind == KernelKind::kCpu
                           ? (rows + kCpuRowsPerSum - 1) / kCpuRowsPerSum
                           : CudaPartialSums(rows, multiprocessors);
  return sums * width * 4;
}

// sum = x + delta, y = RMSNorm(sum).
class AddRmsNormOp : public OpWithKernels<RmsNormKernels> {
 public:
  AddRmsNormOp(KernelKind kind, double eps, int multiprocessors)
      : OpWithKernels(kind), eps_(eps), multiprocessors_(multiprocessors) {}

  absl::string_view kind() const override { return "add_rms_norm"; }

  void Forward(const ForwardArgs& args) const override {
    kernels().forward(
        args.operands[kX], {args.operands[kDelta], args.results[kSum]},
        args.operands[kGain], eps_, args.results[kY], args.results[kR]);
  }
  void Backward(const BackwardArgs& args) const override {
    kernels().backward(args.d_results[kY], args.results[kSum], args.results[kR],
                       args.operands[kGain], args.d_operands[kGain],
                       args.d_operands[kX].grad,
                       {args.d_results[kSum], args.d_operands[kDelta].grad});
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kGain}, .results = {kSum, kR}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int position) const override {
    if (position == kX) return {{Overwritable::What::kResultGradient, kSum}};
    if (position == kDelta) return {{Overwritable::What::kResultGradient, kY}};
    return {};
  }

  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    int64_t bytes = 0;
    if (wanted.Has(kGain)) {
      bytes += PartialSumBytes(kernel_kind(), operand(kX), multiprocessors_);
    }
    for (const int position : {kX, kDelta}) {
      if (!wanted.Has(position)) bytes += operand(position).bytes();
    }
    return bytes;
  }

  Cost ForwardCost() const override {
    return {.flops = 5.0 * static_cast<double>(operand(kX).numel()),
            .bytes = ForwardBytes()};
  }
  Cost BackwardCost(Positions wanted) const override {
    return {.flops = 10.0 * static_cast<double>(operand(kX).numel()),
            .bytes = BackwardBytes(wanted) + result(kY).bytes()};
  }

 private:
  static constexpr int kX = 0, kDelta = 1, kGain = 2;  // operands
  static constexpr int kSum = 0, kY = 1, kR = 2;       // results

  const double eps_;
  const int multiprocessors_;
};

class RmsNormOp : public OpWithKernels<RmsNormKernels> {
 public:
  RmsNormOp(KernelKind kind, double eps, int multiprocessors)
      : OpWithKernels(kind), eps_(eps), multiprocessors_(multiprocessors) {}

  double eps() const { return eps_; }

  absl::string_view kind() const override { return "rms_norm"; }

  void Forward(const ForwardArgs& args) const override {
    kernels().forward(args.operands[kX], {}, args.operands[kGain], eps_,
                      args.results[kY], args.results[kR]);
  }

  void Backward(const BackwardArgs& args) const override {
    kernels().backward(args.d_results[kY], args.operands[kX], args.results[kR],
                       args.operands[kGain], args.d_operands[kGain],
                       args.d_operands[kX].grad, {});
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kX, kGain}, .results = {kR}};
  }

  // With the addition of a narrower branch. Of equal dtypes, addition passes
  // its gradient on without a copy, which one op could not do.
  FusedOp FuseWith(const Op& producer, int position) const override {
    const bool adds = IsAddResidual(producer) && position == kX &&
                      producer.operand(1).dtype == result(kY).dtype &&
                      producer.operand(1).dtype != operand(kX).dtype;
    if (!adds || kernel_kind() == KernelKind::kCpu) return {};
    return {.op = std::make_unique<AddRmsNormOp>(kernel_kind(), eps_,
                                                 multiprocessors_),
            .fusion = Fusion::kResidualNorm,
            .of_producer = {0},
            .of_reader = {kY, kR}};
  }

  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    return (wanted.Has(kGain)
                ? PartialSumBytes(kernel_kind(), operand(kX), multiprocessors_)
                : 0) +
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
  const KernelKind kind = KindFor(device, from, y, b.type(g).dtype, statistics);
  return b.Add(
      std::make_unique<RmsNormOp>(kind, eps, device.multiprocessors),
      b.ShortName(gain), {x, g},
      {{from.shape, y}, {{from.numel() / from.shape.back()}, statistics}},
      {"", "r"})[0];
}

std::optional<double> RmsNormEps(const Op& op) {
  const auto* const norm = dynamic_cast<const RmsNormOp*>(&op);
  if (norm == nullptr) return std::nullopt;
  return norm->eps();
}

}  // namespace tessera
