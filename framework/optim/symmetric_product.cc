#include "framework/optim/symmetric_product.h"

#include <ATen/ATen.h>

#include "framework/base/check.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "framework/optim/optimizer_kernels.h"

namespace tessera {
namespace {

// Into `d`, by LibTorch.
void General(at::Tensor d, const at::Tensor& a, const at::Tensor& b,
             const SymmetricSum& sum, const at::Tensor& c) {
  at::baddbmm_out(d, c.defined() ? c : d, a, b, sum.beta, sum.alpha);
  if (sum.diagonal != 0) d.diagonal(0, 1, 2).add_(sum.diagonal);
}

}  // namespace

absl::Status SymmetricProduct(const at::Tensor& d, const at::Tensor& a,
                              const at::Tensor& b, const SymmetricSum& sum,
                              const at::Tensor& c) {
  TESSERA_CHECK(c.defined() || sum.beta == 0, "a factor without a matrix");
  if constexpr (kCudaBuild) {
    if (d.is_cuda() && d.scalar_type() == at::kHalf && a.size(1) % 8 == 0 &&
        a.size(2) % 8 == 0 && ComputeCapability(d.device()) == 90) {
      return cuda::MultiplySymmetric(d, a, b, sum, c);
    }
  }
  if (d.is_cpu() && c10::elementSize(d.scalar_type()) < 4) {
    const auto wide = [](const at::Tensor& x) {
      return x.defined() ? x.to(at::kFloat) : x;
    };
    const at::Tensor result = at::empty(d.sizes(), at::kFloat);
    General(result, wide(a), wide(b), sum, wide(c));
    d.copy_(result);
  } else {
    General(d, a, b, sum, c);
  }
  return absl::OkStatus();
}

}  // namespace tessera
