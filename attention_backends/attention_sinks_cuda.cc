#include <algorithm>

#include "ATen/ATen.h"
#include "attention_backends/attention_sinks.h"
#include "attention_backends/attention_sinks_kernel.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"

namespace tessera {
namespace cuda {
namespace {

SinkParams ParamsOf(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                    const at::Tensor& lse_bhs) {
  return {.type = FloatTypeOf(o_bhsd),
          .batch = o_bhsd.size(0),
          .sequence = o_bhsd.size(2),
          .heads = static_cast<int>(o_bhsd.size(1)),
          .head_dim = static_cast<int>(o_bhsd.size(3)),
          .sinks = sinks.const_data_ptr<float>(),
          .o = o_bhsd.mutable_data_ptr(),
          .lse = lse_bhs.mutable_data_ptr<float>()};
}

}  // namespace

void ApplySinks(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                const at::Tensor& lse_bhs) {
  ThrowIfError(Launch(o_bhsd, "the attention sinks' kernel", LaunchApplySinks,
                      ParamsOf(sinks, o_bhsd, lse_bhs)));
}

void SinkGradients(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                   const at::Tensor& lse_bhs, const at::Tensor& d_o_bhsd,
                   const at::Tensor& d_sinks) {
  SinkParams params = ParamsOf(sinks, o_bhsd, lse_bhs);
  params.d_o = d_o_bhsd.const_data_ptr();
  params.d_o_batch = d_o_bhsd.stride(0);
  params.d_o_head = d_o_bhsd.stride(1);
  params.d_o_row = d_o_bhsd.stride(2);
  params.chunks = static_cast<int>(SinkChunks(params.batch * params.sequence));
  const at::Tensor partial =
      at::empty({params.heads, params.chunks}, sinks.options());
  params.partial = partial.mutable_data_ptr<float>();
  params.d_sinks = d_sinks.mutable_data_ptr<float>();
  ThrowIfError(Launch(o_bhsd, "the attention sinks' gradient",
                      LaunchSinkGradients, params));
}

}  // namespace cuda
}  // namespace tessera
