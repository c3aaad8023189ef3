#include "framework/ops/rope.h"

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/dispatch.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// True when nobody but the calling node can see this tensor's memory.
bool IsSoleOwner(const at::Tensor& t) {
  return t.use_count() == 1 && t.storage().use_count() == 1 &&
         t.is_contiguous();
}

class RopeFunction : public torch::autograd::Function<RopeFunction> {
 public:
  // Rotates through an alias with qkv's version counter. Marking qkv dirty
  // would be the textbook way, but qkv is usually a view of a projection's
  // result, and for views autograd then copies the whole gradient three times
  // in the backward pass (CopySlices). The shared counter keeps its safety: an
  // op that saved qkv before the rotation still fails in its backward.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv,
                            const RopeTable& table, int64_t rotated_heads) {
    ctx->saved_data["cos"] = table.cos;
    ctx->saved_data["sin"] = table.sin;
    ctx->saved_data["halved"] = table.layout == RopeLayout::kHalved;
    ctx->saved_data["rotated_heads"] = rotated_heads;
    at::Tensor rotated = qkv.tensor_data();
    TESSERA_DISPATCH(rotated, Rotate, rotated, table, rotated_heads,
                     /*inverse=*/false);
    rotated.unsafeGetTensorImpl()->bump_version();
    return rotated;
  }

  // Takes the list by reference: a copy would be a second owner.
  static variable_list backward(AutogradContext* ctx, variable_list& grads) {
    const RopeTable table = {
        .cos = ctx->saved_data["cos"].toTensor(),
        .sin = ctx->saved_data["sin"].toTensor(),
        .layout = ctx->saved_data["halved"].toBool() ? RopeLayout::kHalved
                                                     : RopeLayout::kInterleaved,
    };
    at::Tensor dqkv = IsSoleOwner(grads[0])
                          ? grads[0]
                          : grads[0].clone(at::MemoryFormat::Contiguous);
    TESSERA_DISPATCH(dqkv, Rotate, dqkv, table,
                     ctx->saved_data["rotated_heads"].toInt(),
                     /*inverse=*/true);
    return {dqkv, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RopeTable RopeTable::Create(int64_t positions, int64_t head_dim, double theta,
                            RopeLayout layout, at::Device device) {
  TESSERA_CHECK(head_dim % 2 == 0, "head_dim: ", head_dim);
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::kDouble) / -static_cast<double>(head_dim);
  const at::Tensor frequency =
      at::pow(at::scalar_tensor(theta, at::kDouble), exponent);
  const at::Tensor angle =
      at::arange(positions, at::kDouble).unsqueeze(1) * frequency;
  return {.cos = angle.cos().to(device, at::kFloat),
          .sin = angle.sin().to(device, at::kFloat),
          .layout = layout};
}

at::Tensor Rope(at::Tensor qkv, const RopeTable& table, int64_t rotated_heads) {
  TESSERA_CHECK(qkv.dim() == 4 && qkv.is_contiguous(),
                "qkv must be contiguous [B, S, heads, D]");
  TESSERA_CHECK(qkv.size(1) <= table.cos.size(0), "S: ", qkv.size(1),
                "; positions in the table: ", table.cos.size(0));
  TESSERA_CHECK(qkv.size(3) == 2 * table.cos.size(1), "D: ", qkv.size(3));
  TESSERA_CHECK(rotated_heads <= qkv.size(2), "heads: ", qkv.size(2));
  return RopeFunction::apply(qkv, table, rotated_heads);
}

}  // namespace tessera
