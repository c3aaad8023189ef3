#ifndef FRAMEWORK_OPS_LINEAR_FEW_ROWS_H_
#define FRAMEWORK_OPS_LINEAR_FEW_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "framework/cuda/device.h"
#include "framework/ops/forward_only_op.h"

namespace tessera {

// The linear layers of a token that follows a text. On a GPU they have a kernel
// of their own: such a product is bound by reading the weight. The norm before
// it and the addition or SwiGLU after it do little work. As separate kernels
// they would interrupt the reading, so they are fused into the product
// (Fusion::kNextToken).

inline constexpr int64_t kMostFewRows = 4;

// Whether the kernel computes y = x W^T on `device`.
//   x: [..., in] or [..., heads, in / heads]; weight: [out, in]
//   result: the dtype of y
bool IsFewRows(const DeviceInfo& device, const TensorType& x,
               const TensorType& weight, at::ScalarType result);

enum class AfterFewRows {
  kNothing,
  kAdd,     // adds the residual
  kSwiGlu,  // (framework/ops/swiglu)
};

struct FewRowsSpec {
  std::optional<double> norm_eps;  // RMSNorm before the product
  AfterFewRows after = AfterFewRows::kNothing;
};

// y = after(norm(x) W^T).
//   operands: x; with a norm its gain, [in], FP32; weight; under kAdd the
//   residual, y's type
// The product is rounded to the dtype of the weight, like the result of the op
// that this one replaces. Only in CUDA builds.
class FewRowsOp : public ForwardOnlyOp {
 public:
  explicit FewRowsOp(const FewRowsSpec& spec) : spec_(spec) {}

  absl::string_view kind() const override { return "linear"; }
  std::string kernel() const override { return "few_rows"; }
  void Forward(const ForwardArgs& args) const override;
  Cost ForwardCost() const override;

  // This op with `norm`, an RMSNorm whose result it multiplies.
  FusedOp WithNorm(const Op& norm, double eps) const;
  // This op fused with its reader `after`, whose result has dtype `written`.
  FusedOp Then(AfterFewRows after, at::ScalarType written) const;

 private:
  static FusedOp Fused(const FewRowsSpec& spec);
  int weight() const { return spec_.norm_eps.has_value() ? 2 : 1; }

  const FewRowsSpec spec_;
};

// FewRowsOp::Then() of `op` if that is a FewRowsOp; else none.
FusedOp FewRowsThen(const Op& op, AfterFewRows after, at::ScalarType result);

// The kernel. Tensors are contiguous; x: [rows, in], y: [rows, out].
struct FewRowsTensors {
  at::Tensor x, weight, y;
  at::Tensor gain, residual;  // may be undefined
};
namespace cuda {
// Throws LibTorch's exceptions.
void MultiplyFewRows(const FewRowsSpec& spec, const FewRowsTensors& tensors);
}  // namespace cuda

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_FEW_ROWS_H_
