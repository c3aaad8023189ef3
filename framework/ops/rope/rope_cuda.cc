#include "ATen/ATen.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/rope/rope_kernels.h"
#include "framework/ops/rope/rope_launch.h"

namespace tessera {
namespace {

void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse) {
  const RopeParams params = {.type = FloatTypeOf(x),
                             .halved = table.layout == RopeLayout::kHalved,
                             .inverse = inverse,
                             .tokens = x.size(0) * x.size(1),
                             .positions = x.size(1),
                             .heads = static_cast<int>(x.size(2)),
                             .rotated_heads = static_cast<int>(rotated_heads),
                             .head_dim = static_cast<int>(x.size(3)),
                             .cos = table.cos.const_data_ptr<float>(),
                             .sin = table.sin.const_data_ptr<float>(),
                             .token_positions = table.token_positions_data(),
                             .x = x.mutable_data_ptr()};
  ThrowIfError(Launch(x, "RoPE's kernel", LaunchRope, params));
}

}  // namespace

const RopeKernels RopeKernels::kCuda = {.rotate = Rotate};

}  // namespace tessera
