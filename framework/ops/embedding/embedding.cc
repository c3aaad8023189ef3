#include "framework/ops/embedding/embedding.h"

#include <cstdint>
#include <memory>

#include "ATen/ATen.h"
#include "framework/cuda/cuda_build.h"
#include "framework/ops/embedding/embedding_kernels.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/rows.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

constexpr int kIds = 0, kTable = 1;

// sums[id] += row for every row of `values`, in the same order on every run: a
// single thread on a CPU, sums over sorted segments on a GPU.
void AddRows(at::Tensor sums, const at::Tensor& ids, const at::Tensor& values) {
  if (sums.is_cuda()) {
    // index_put_() would make the host wait while it checks the ids.
    at::_index_put_impl_(sums, {ids}, values, /*accumulate=*/true,
                         /*unsafe=*/true);
  } else {
    sums.index_add_(0, ids, values);
  }
}

class EmbeddingOp : public Op {
 public:
  // `gradient` is the dtype of the table's gradient.
  EmbeddingOp(KernelKind backward, at::ScalarType gradient)
      : backward_(backward), gradient_(gradient) {}

  absl::string_view kind() const override { return "embedding"; }
  std::string kernel() const override {
    return backward_ == KernelKind::kCuda ? "ATen, own kernel" : "ATen";
  }

  void Forward(const ForwardArgs& args) const override {
    const at::Tensor& table = args.operands[kTable];
    at::Tensor rows = RowsOf(args.results[0], width());
    const at::Tensor ids = args.operands[kIds].view({-1});
    if (rows.scalar_type() == table.scalar_type()) {
      at::index_select_out(rows, table, 0, ids);
    } else {
      rows.copy_(at::index_select(table, 0, ids));
    }
  }

  void Backward(const BackwardArgs& args) const override {
    const GradTarget& target = args.d_operands[kTable];
    const at::Tensor ids = args.operands[kIds].view({-1});
    const at::Tensor dx = RowsOf(args.d_results[0], width());
    if constexpr (kCudaBuild) {
      if (backward_ == KernelKind::kCuda) {
        return EmbeddingBackwardOnCuda(ids, dx, target);
      }
    }
    const at::Tensor rows = dx.to(ArithmeticDtype(dx.scalar_type()));
    if (target.grad.scalar_type() == rows.scalar_type()) {
      if (!target.accumulate) target.grad.zero_();
      AddRows(target.grad, ids, rows);
    } else {
      const at::Tensor sums = at::zeros(target.grad.sizes(), rows.options());
      AddRows(sums, ids, rows);
      WriteGrad(target, sums);
    }
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kIds}};
  }

  int64_t ForwardWorkspaceBytes() const override {
    const bool casts = result(0).dtype != operand(kTable).dtype;
    return casts ? TensorType{result(0).shape, operand(kTable).dtype}.bytes()
                 : 0;
  }
  // Lists of tokens (embedding_kernels.h); or the sums unless the gradient
  // itself has their dtype, the rows in FP32, and the sorted ids with their
  // rows.
  int64_t BackwardWorkspaceBytes(Positions) const override {
    if (backward_ == KernelKind::kCuda) {
      return TensorType{{EmbeddingBackwardWorkspace(operand(kIds).numel(),
                                                    operand(kTable).shape[0])},
                        at::kInt}
          .bytes();
    }
    const at::ScalarType wide = ArithmeticDtype(result(0).dtype);
    const int64_t rows =
        wide == result(0).dtype ? 0 : TensorType{result(0).shape, wide}.bytes();
    const int64_t sums =
        wide == gradient_ ? 0 : TensorType{operand(kTable).shape, wide}.bytes();
    return sums + rows + 4 * operand(kIds).bytes();
  }

  Cost ForwardCost() const override {
    return {.bytes = operand(kIds).bytes() + 2 * result(0).bytes()};
  }
  Cost BackwardCost(Positions) const override {
    return {.flops = static_cast<double>(result(0).numel()),
            .bytes = operand(kIds).bytes() + result(0).bytes() +
                     TensorType{operand(kTable).shape, gradient_}.bytes()};
  }

 private:
  int64_t width() const { return operand(kTable).shape[1]; }

  const KernelKind backward_;
  const at::ScalarType gradient_;
};

}  // namespace

Value Embedding(ProgramBuilder& b, Value ids, Weight table) {
  const Value t = b.Read(table, b.dtype(OpClass::kMasterWeights));
  TensorType type = {b.type(ids).shape, b.dtype(OpClass::kResidual)};
  type.shape.push_back(b.type(t).shape[1]);
  const at::ScalarType gradient = b.dtype(OpClass::kGradient);
  const DeviceInfo& device = b.target().device;
  const KernelKind backward =
      KernelKindFor(device, gradient) == KernelKind::kCuda
          ? KernelKindFor(device, type.dtype)
          : KernelKind::kReference;
  return b.Add(std::make_unique<EmbeddingOp>(backward, gradient),
               b.ShortName(table), {ids, t}, {std::move(type)})[0];
}

}  // namespace tessera
