#include "attention_backends/strided_product.h"

#include <cstdint>

#include "ATen/ATen.h"

namespace tessera {
namespace {

// Up to this many batch entries get a product each. With more, strided operands
// are packed first: three copies of n D elements then cost less than the
// launches.
constexpr int64_t kMaxLaunches = 4;

// Whether the two leading dimensions can be merged without a copy.
bool IsOneBatch(const at::Tensor& x) {
  return x.size(0) == 1 || x.size(1) == 1 ||
         x.stride(0) == x.size(1) * x.stride(1);
}

// x with its matrices one after the other, each row- or column-major as before.
at::Tensor Pack(const at::Tensor& x) {
  return x.stride(3) == 1 ? x.contiguous()
                          : x.transpose(2, 3).contiguous().transpose(2, 3);
}

}  // namespace

at::Tensor AsOperand(const at::Tensor& x) { return IsTarget(x) ? x : Pack(x); }

bool IsTarget(const at::Tensor& out) {
  return IsOneBatch(out) || out.size(0) <= kMaxLaunches;
}

void MultiplyBatch(const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out) {
  out.baddbmm_(a, b, /*beta=*/0, alpha);
}

// A batched product takes one stride between its matrices; slices of a fused
// projection have two, hence the cases.
void Multiply(const at::Tensor& a, const at::Tensor& b, double alpha,
              const at::Tensor& out, BatchedProduct batch) {
  if (IsOneBatch(a) && IsOneBatch(b) && IsOneBatch(out)) {
    batch(a.flatten(0, 1), b.flatten(0, 1), alpha, out.flatten(0, 1));
  } else if (out.size(0) <= kMaxLaunches) {
    for (int64_t i = 0; i < out.size(0); ++i) {
      batch(a[i], b[i], alpha, out[i]);
    }
  } else if (IsOneBatch(out)) {
    Multiply(Pack(a), Pack(b), alpha, out, batch);
  } else {
    const at::Tensor packed = at::empty(out.sizes(), out.options());
    Multiply(a, b, alpha, packed, batch);
    out.copy_(packed);
  }
}

void MultiplyIntoHeads(const at::Tensor& a, const at::Tensor& b, double alpha,
                       const at::Tensor& out, BatchedProduct batch) {
  if (out.size(1) == a.size(1)) return Multiply(a, b, alpha, out, batch);
  const at::Tensor grouped =
      at::empty({out.size(0), a.size(1), a.size(2), b.size(3)}, out.options());
  Multiply(a, b, alpha, grouped, batch);
  out.copy_(grouped.view(out.sizes()));
}

at::Tensor GroupHeads(const at::Tensor& x_bhsd, int64_t kv_heads) {
  return x_bhsd.reshape({x_bhsd.size(0), kv_heads, -1, x_bhsd.size(3)});
}

int64_t MatricesPerLaunch(int64_t b, int64_t heads) {
  return b > kMaxLaunches || heads == 1 ? b * heads : heads;
}

int64_t ProductCopyBytes(const AttentionProblem& problem) {
  const AttentionProblem& p = problem;
  const auto element = static_cast<int64_t>(c10::elementSize(p.dtype));
  const bool packs = p.b > kMaxLaunches && p.g > 1;
  const int64_t query_heads = p.b * p.h * p.s * p.d * element;
  const int64_t key_heads = p.b * p.g * p.t * p.d * element;
  return (p.h != p.g || packs ? query_heads : 0) + (packs ? key_heads : 0);
}

}  // namespace tessera
