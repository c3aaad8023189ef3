#include "framework/ops/cross_entropy/cross_entropy.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/linear/linear.h"
#include "framework/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace {

constexpr int kLogits = 0, kTargets = 1;  // operands
constexpr int kLoss = 0, kLse = 1;        // results

class CrossEntropyOp : public OpWithKernels<CrossEntropyKernels> {
 public:
  CrossEntropyOp(KernelKind kernels, const CrossEntropyOptions& options)
      : OpWithKernels(kernels), options_(options) {}

  absl::string_view kind() const override { return "cross_entropy"; }

  void Forward(const ForwardArgs& args) const override {
    kernels().forward(RowsIn(args.operands), args.results[kLoss],
                      args.results[kLse]);
  }
  void Backward(const BackwardArgs& args) const override {
    kernels().backward(RowsIn(args.operands), args.d_results[kLoss],
                       args.results[kLse],
                       RowsOf(args.d_operands[kLogits].grad, vocab()));
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kLogits, kTargets}, .results = {kLse}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, kLogits}};
  }

  FusedOp FuseWith(const Op& producer, int position) const override {
    const auto products = LinearProductsOf(producer);
    if (position != kLogits || !products.has_value()) return {};
    return {.op = LinearCrossEntropy(*products, operand(kLogits).dtype,
                                     kernel_kind(), options_),
            .fusion = Fusion::kHeadLoss,
            .of_reader = {kLoss}};
  }

  // One loss per row.
  int64_t ForwardWorkspaceBytes() const override {
    return result(kLse).bytes();
  }

  Cost ForwardCost() const override {
    // Maximum, difference, exponential and sum.
    return {.flops = 4.0 * static_cast<double>(operand(kLogits).numel()),
            .bytes = ForwardBytes()};
  }
  Cost BackwardCost(Positions wanted) const override {
    return {.flops = 3.0 * static_cast<double>(operand(kLogits).numel()),
            .bytes = BackwardBytes(wanted)};
  }

 private:
  CrossEntropyRows RowsIn(absl::Span<const at::Tensor> operands) const {
    return {.logits = RowsOf(operands[kLogits], vocab()),
            .targets = operands[kTargets].view({-1}),
            .options = options_};
  }
  int64_t vocab() const { return operand(kLogits).shape.back(); }

  const CrossEntropyOptions options_;
};

}  // namespace

Value CrossEntropySum(ProgramBuilder& b, Value logits, Value targets,
                      const CrossEntropyOptions& options) {
  const TensorType from = b.type(logits);
  const int64_t rows = from.numel() / from.shape.back();
  TESSERA_CHECK(b.type(targets).dtype == at::kLong, "targets must be int64");
  TESSERA_CHECK(b.type(targets).numel() == rows,
                "cross entropy needs one target per row of logits");
  const at::ScalarType dtype = b.dtype(OpClass::kLoss);
  const KernelKind kind = dtype == at::kFloat
                              ? KernelKindFor(b.target().device, from.dtype)
                              : KernelKind::kReference;
  // The CUDA kernel keeps each row's log-sum-exp in two parts.
  const TensorType lse = kind == KernelKind::kCuda
                             ? TensorType{{2, rows}, dtype}
                             : TensorType{{rows}, dtype};
  return b.Add(std::make_unique<CrossEntropyOp>(kind, options), "cross_entropy",
               {logits, targets}, {{{}, dtype}, lse}, {"", "lse"})[0];
}

}  // namespace tessera
