#include "framework/optim/newton_schulz.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "framework/base/status_macros.h"
#include "framework/optim/muon_math.h"
#include "framework/optim/symmetric_product.h"

namespace tessera {
namespace {

// X is multiplied by it: then its elements have a mean square of about 1 at
// first, and singular values of at most 1.2 * 2^15 at last.
double ScaleOf(const at::Tensor& x) {
  if (x.scalar_type() != at::kHalf) return 1;
  const auto numel = static_cast<double>(x.size(1) * x.size(2));
  return std::exp2(std::min(15.0, std::floor(std::log2(numel) / 2)));
}

// Q of `steps` steps from A = X X^T / scale^2; for one step, Q leaves out a I.
// `wide` is X or its transposed view, whichever has no more rows than columns.
absl::StatusOr<at::Tensor> ProductOfSteps(const at::Tensor& wide, double scale,
                                          int steps,
                                          const MuonWorkspace& workspace) {
  auto [a, z, q, spare] = workspace.grams;
  RETURN_IF_ERROR(SymmetricProduct(a, wide, wide.transpose(1, 2),
                                   {.alpha = 1 / (scale * scale)}));
  const double diagonal = steps > 1 ? kMuonA : 0;
  for (int step = 0; step < steps; ++step) {
    RETURN_IF_ERROR(SymmetricProduct(
        z, a, a, {.alpha = kMuonC, .beta = kMuonB, .diagonal = diagonal}, a));
    if (step + 1 < steps) {
      RETURN_IF_ERROR(SymmetricProduct(spare, a, z, {}));
      RETURN_IF_ERROR(SymmetricProduct(a, z, spare, {}));
    }
    if (step == 0) {
      std::swap(q, z);
    } else {
      RETURN_IF_ERROR(SymmetricProduct(spare, q, z, {}));
      std::swap(q, spare);
    }
  }
  return q;
}

// next = factor (own X + Q X), or X Q for tall X.
void Multiply(at::Tensor next, const at::Tensor& q, const at::Tensor& x,
              double own, double factor) {
  const bool tall = x.size(1) > x.size(2);
  const at::Tensor &left = tall ? x : q, &right = tall ? q : x;
  if (x.is_cpu() && x.scalar_type() == at::kHalf) {
    const at::Tensor sum =
        at::baddbmm(x.to(at::kFloat), left.to(at::kFloat), right.to(at::kFloat),
                    own * factor, factor);
    next.copy_(sum);
  } else {
    at::baddbmm_out(next, x, left, right, own * factor, factor);
  }
}

}  // namespace

absl::StatusOr<at::Tensor> NewtonSchulz(int steps,
                                        const MuonWorkspace& workspace) {
  at::Tensor x = workspace.x, next = workspace.next, norms = workspace.norms;
  const at::Tensor u = workspace.u();
  at::linalg_vector_norm_out(norms, u, 2, at::IntArrayRef({1, 2}),
                             /*keepdim=*/true, at::kFloat);
  const double scale = ScaleOf(x);
  at::mul_out(x, u, norms.clamp_min_(kMuonMinNorm).reciprocal_().mul_(scale));
  for (const int run : NewtonSchulzRuns(steps, workspace.four_grams())) {
    const bool tall = x.size(1) > x.size(2);
    ASSIGN_OR_RETURN(
        const at::Tensor q,
        ProductOfSteps(tall ? x.transpose(1, 2) : x, scale, run, workspace));
    steps -= run;
    Multiply(next, q, x, run > 1 ? 0 : kMuonA, steps > 0 ? 1 : 1 / scale);
    std::swap(x, next);
  }
  return x;
}

}  // namespace tessera
