#include <utility>

#include "ATen/ATen.h"
#include "framework/ops/rope/rope_kernels.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

// The first and second elements of every pair that rotates together.
std::pair<at::Tensor, at::Tensor> Pairs(const at::Tensor& x,
                                        RopeLayout layout) {
  if (layout == RopeLayout::kHalved) {
    const int64_t half = x.size(-1) / 2;
    return {x.narrow(-1, 0, half), x.narrow(-1, half, half)};
  }
  return {x.slice(-1, 0, std::nullopt, 2), x.slice(-1, 1, std::nullopt, 2)};
}

void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse) {
  const at::ScalarType dtype = ArithmeticDtype(x.scalar_type());
  const int64_t positions = x.size(1);
  // [S, 1, D/2] or [B, S, 1, D/2], broadcast over heads.
  const auto rows = [&](const at::Tensor& angles) {
    const at::Tensor& at = table.token_positions;
    const at::Tensor of_tokens =
        at.defined() ? angles.index({at}) : angles.narrow(0, 0, positions);
    return of_tokens.unsqueeze(-2).to(dtype);
  };
  const at::Tensor cos = rows(table.cos), sin = rows(table.sin);
  auto [first, second] = Pairs(x.narrow(2, 0, rotated_heads), table.layout);
  const at::Tensor u = first.to(dtype), v = second.to(dtype);
  if (inverse) {
    const at::Tensor rotated_u = u * cos + v * sin;
    second.copy_(v * cos - u * sin);
    first.copy_(rotated_u);
  } else {
    const at::Tensor rotated_u = u * cos - v * sin;
    second.copy_(v * cos + u * sin);
    first.copy_(rotated_u);
  }
}

}  // namespace

const RopeKernels RopeKernels::kReference = {.rotate = Rotate};

}  // namespace tessera
