#include "attention_backends/compiled_fused/compiled_fused_backend.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/compiled_fused/banded_product.h"
#include "attention_backends/compiled_fused/softmax.h"
#include "attention_backends/strided_product.h"
#include "framework/base/phase_observer.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/ops/linear/cublas_lt_product.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

// The kernels number keys and rows by 32-bit integers.
constexpr int64_t kMaxLength = int64_t{1} << 30;
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

absl::Status CheckDtype(const AttentionProblem& problem) {
  switch (problem.dtype) {
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
      return absl::OkStatus();
    case at::kDouble:
      if (!problem.cuda) return absl::OkStatus();
      break;
    default:
      break;
  }
  return absl::UnimplementedError(absl::StrCat(
      "computes in Float, BFloat16 or Half, and on a CPU in Double, not in ",
      c10::toString(problem.dtype), problem.cuda ? " on a GPU" : "",
      ": change precision"));
}

absl::Status CheckGpu(const AttentionProblem& p) {
  RETURN_IF_ERROR(RequireCapability(p, 80));
  if (std::max(p.s, p.t) > kMaxLength || p.b * p.h * p.s > kMaxRows) {
    return absl::UnimplementedError(absl::StrCat(
        "supports lengths up to ", kMaxLength, " and up to ", kMaxRows,
        " queries over batch and heads, not lengths ", p.s, " x ", p.t, " and ",
        p.b * p.h * p.s, " queries: use a smaller batch or context"));
  }
  return absl::OkStatus();
}

// Computes products by cuBLASLt if it supports them.
auto DeviceProduct(const ProductChoices* choices) {
  return [choices](const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out) {
    if constexpr (kCudaBuild) {
      if (MultiplyByCublasLt(a, b, out, {.choices = choices}, alpha)) {
        return;
      }
    }
    MultiplyBatch(a, b, alpha, out);
  };
}

}  // namespace

absl::Status CompiledFusedBackend::Supports(
    const AttentionProblem& problem) const {
  RETURN_IF_ERROR(CheckDtype(problem));
  RETURN_IF_ERROR(RequirePlain(problem));
  return problem.cuda ? CheckGpu(problem) : absl::OkStatus();
}

AttentionMemory CompiledFusedBackend::Plan(
    const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  const auto element = static_cast<int64_t>(c10::elementSize(p.dtype));
  const int64_t scores = p.b * p.h * p.s * p.t * element;
  const int64_t q = p.b * p.h * p.s * p.d * element;
  AttentionMemory memory;
  memory.forward_bytes = ProductCopyBytes(p);
  if (!p.needs_grad) {
    memory.forward_bytes += scores;
    return memory;
  }
  memory.saved = {{{p.b, p.g, p.h / p.g * p.s, p.t}, p.dtype}};
  memory.saved_bytes = scores + q;
  memory.backward_bytes = scores + (p.h != p.g ? q : 0) + ProductCopyBytes(p);
  return memory;
}

std::vector<MatrixProduct> CompiledFusedBackend::Products(
    const AttentionArgs& args, const AttentionGrads& grads) const {
  AttentionProblem n = ProblemOf(args);
  n.cuda = true;
  std::vector<MatrixProduct> list;
  const auto add = [&](const at::Tensor& a, const at::Tensor& b, double,
                       const at::Tensor& out) {
    list.push_back({a, b, out});
  };
  const fused::BandedProducts products(fused::MaskOf(n), add);
  const at::Tensor q = GroupHeads(args.q_bhsd, n.g);
  const at::Tensor o = OutputOrEmpty({}, args.q_bhsd);
  const at::Tensor d_o = GroupHeads(o, n.g);
  const at::Tensor n2 =
      at::empty({n.b, n.g, n.h / n.g * n.s, n.t}, q.options());
  products.MultiplyIntoScores(q, args.k_bgtd, args.scale, n2);
  products.MultiplyByKeys(n2, args.v_bgtd, 1, o);
  products.MultiplyByQueries(n2, d_o, 1, grads.dv_bgtd);
  products.MultiplyIntoScores(d_o, args.v_bgtd, 1, n2);
  products.MultiplyByKeys(n2, args.k_bgtd, args.scale, grads.dq_bhsd);
  products.MultiplyByQueries(n2, q, args.scale, grads.dk_bgtd);
  return list;
}

absl::Status CompiledFusedBackend::Forward(const AttentionArgs& args,
                                           AttentionOut* out) const {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    const AttentionProblem n = ProblemOf(args);
    const auto product = DeviceProduct(args.products);
    const fused::BandedProducts products(fused::MaskOf(n), product);
    const at::TensorOptions options = args.q_bhsd.options();
    const at::Tensor p =
        SavedOrEmpty(*out, 0, {n.b, n.g, n.h / n.g * n.s, n.t}, options);
    {
      const PhaseScope phase(args.phases, "scores");
      products.MultiplyIntoScores(GroupHeads(args.q_bhsd, n.g), args.k_bgtd,
                                  args.scale, p);
    }
    if (args.wants_lse) {
      out->lse_bhs =
          at::empty({n.b, n.h, n.s}, options.dtype(ArithmeticDtype(n.dtype)));
    }
    {
      const PhaseScope phase(args.phases, "softmax");
      RETURN_IF_ERROR(fused::SoftmaxInPlace(
          products.mask(), p.view({n.b, n.h, n.s, n.t}), out->lse_bhs));
    }
    const PhaseScope phase(args.phases, "values");
    out->o_bhsd = OutputOrEmpty(*out, args.q_bhsd);
    products.MultiplyByKeys(p, args.v_bgtd, 1, out->o_bhsd);
    out->saved = {p};
    return absl::OkStatus();
  });
}

absl::Status CompiledFusedBackend::Backward(const AttentionArgs& args,
                                            const AttentionOut& out,
                                            const at::Tensor& d_o_bhsd,
                                            AttentionGrads* grads) const {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    const AttentionProblem n = ProblemOf(args);
    const auto product = DeviceProduct(args.products);
    const fused::BandedProducts products(fused::MaskOf(n), product);
    const at::Tensor& p = out.saved[0];
    const at::Tensor d_o_rows =
        d_o_bhsd.stride(3) == 1 ? d_o_bhsd : d_o_bhsd.contiguous();
    const at::Tensor d_o = GroupHeads(d_o_rows, n.g);
    products.MultiplyByQueries(p, d_o, 1, grads->dv_bgtd);
    const at::Tensor d_s = at::empty_like(p);
    products.MultiplyIntoScores(d_o, args.v_bgtd, 1, d_s);
    const std::array<int64_t, 4> bhst = {n.b, n.h, n.s, n.t};
    RETURN_IF_ERROR(fused::SoftmaxBackwardInPlace(
        products.mask(), p.view(bhst), d_o_rows, out.o_bhsd, d_s.view(bhst)));
    products.MultiplyByKeys(d_s, args.k_bgtd, args.scale, grads->dq_bhsd);
    products.MultiplyByQueries(d_s, GroupHeads(args.q_bhsd, n.g), args.scale,
                               grads->dk_bgtd);
    return absl::OkStatus();
  });
}

}  // namespace tessera
