#include "framework/ops/linear/few_rows.h"

#include <memory>

#include "framework/base/check.h"
#include "framework/cuda/cuda_build.h"
#include "framework/ops/rows.h"

namespace tessera {

namespace {

// A thread block keeps all rows of x in shared memory, beside 80 KiB of W and
// what the kernel declares.
int64_t MostBytesOfX(int compute_capability) {
  return MostSharedBytes(compute_capability) - (81 << 10);
}

}  // namespace

bool IsFewRows(const DeviceInfo& device, const TensorType& x,
               const TensorType& weight, at::ScalarType result) {
  const int64_t in = weight.shape[1];
  return device.is_cuda() && x.numel() <= kMostFewRows * in &&
         x.bytes() <= MostBytesOfX(device.compute_capability) && in % 8 == 0 &&
         x.dtype == weight.dtype &&
         (x.dtype == at::kBFloat16 || x.dtype == at::kHalf) &&
         (result == x.dtype || result == at::kFloat);
}

void FewRowsOp::Forward(const ForwardArgs& args) const {
  if constexpr (kCudaBuild) {
    const at::Tensor& w = args.operands[weight()];
    const int64_t in = w.size(1);
    const int64_t out =
        spec_.after == AfterFewRows::kSwiGlu ? w.size(0) / 2 : w.size(0);
    FewRowsTensors tensors = {.x = RowsOf(args.operands[0], in),
                              .weight = w,
                              .y = RowsOf(args.results[0], out)};
    if (spec_.norm_eps.has_value()) tensors.gain = args.operands[1];
    if (spec_.after == AfterFewRows::kAdd) {
      tensors.residual = args.operands[weight() + 1];
    }
    return cuda::MultiplyFewRows(spec_, tensors);
  }
  TESSERA_CHECK(false, "few_rows is a kernel of CUDA builds");
}

Cost FewRowsOp::ForwardCost() const {
  const double rows = static_cast<double>(operand(0).numel()) /
                      static_cast<double>(operand(weight()).shape[1]);
  const double flops =
      2 * rows * static_cast<double>(operand(weight()).numel());
  return {.flops = flops,
          .bytes = ForwardBytes(),
          .product_flops = flops,
          .products = 1};
}

FusedOp FewRowsOp::Fused(const FewRowsSpec& spec) {
  return {.op = std::make_unique<FewRowsOp>(spec),
          .fusion = Fusion::kNextToken,
          .of_reader = {0}};
}

FusedOp FewRowsOp::WithNorm(const Op& norm, double eps) const {
  constexpr int kX = 0, kGain = 1, kY = 0, kR = 1;
  const TensorType &w = operand(weight()), &gain = norm.operand(kGain);
  const at::ScalarType x = norm.operand(kX).dtype, y = norm.result(kY).dtype;
  // Before its factor is known, the norm's result may exceed FP16.
  const bool has_kernel =
      w.dtype == at::kBFloat16 && (x == y || x == at::kFloat) &&
      gain.dtype == at::kFloat && gain.numel() == w.shape[1] &&
      norm.result(kR).dtype == at::kFloat;
  if (!has_kernel || spec_.norm_eps.has_value()) return {};
  FewRowsSpec spec = spec_;
  spec.norm_eps = eps;
  return Fused(spec);
}

FusedOp FewRowsOp::Then(AfterFewRows after, at::ScalarType written) const {
  const at::ScalarType operands = operand(weight()).dtype;
  const bool has_kernel =
      result(0).dtype == operands &&
      (written == operands ||
       (after == AfterFewRows::kAdd && written == at::kFloat));
  if (!has_kernel || spec_.after != AfterFewRows::kNothing) return {};
  FewRowsSpec spec = spec_;
  spec.after = after;
  return Fused(spec);
}

FusedOp FewRowsThen(const Op& op, AfterFewRows after, at::ScalarType result) {
  const auto* const few_rows = dynamic_cast<const FewRowsOp*>(&op);
  return few_rows == nullptr ? FusedOp() : few_rows->Then(after, result);
}

}  // namespace tessera
