#include "ATen/ATen.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "framework/ops/cross_entropy/cross_entropy_launch.h"

namespace tessera {
namespace {

void Forward(const CrossEntropyRows& in, const at::Tensor& loss,
             const at::Tensor& lse) {
  const at::Tensor& logits = in.logits;
  const at::Tensor ids = in.targets.contiguous();
  const at::Tensor losses = at::empty({logits.size(0)}, lse.options());
  const CrossEntropyParams params = {
      .type = FloatTypeOf(logits),
      .rows = logits.size(0),
      .vocab = logits.size(1),
      .logits_stride = logits.stride(0),
      .options = in.options,
      .logits = logits.const_data_ptr(),
      .targets = ids.const_data_ptr<int64_t>(),
      .lse = lse.mutable_data_ptr<float>(),
      .losses = losses.mutable_data_ptr<float>()};
  ThrowIfError(Launch(logits, "Cross entropy's kernel",
                      LaunchCrossEntropyForward, params));
  at::Tensor sum = loss;
  at::sum_out(sum, losses, at::IntArrayRef{}, /*keepdim=*/false);
}

void Backward(const CrossEntropyRows& in, const at::Tensor& dloss,
              const at::Tensor& lse, at::Tensor dlogits) {
  const at::Tensor& logits = in.logits;
  const at::Tensor ids = in.targets.contiguous();
  const CrossEntropyParams params = {.type = FloatTypeOf(logits),
                                     .rows = logits.size(0),
                                     .vocab = logits.size(1),
                                     .logits_stride = logits.stride(0),
                                     .dlogits_stride = dlogits.stride(0),
                                     .options = in.options,
                                     .logits = logits.const_data_ptr(),
                                     .targets = ids.const_data_ptr<int64_t>(),
                                     .lse = lse.mutable_data_ptr<float>(),
                                     .dloss = dloss.const_data_ptr<float>(),
                                     .dlogits = dlogits.mutable_data_ptr()};
  ThrowIfError(Launch(logits, "Cross entropy's backward kernel",
                      LaunchCrossEntropyBackward, params));
}

}  // namespace

const CrossEntropyKernels CrossEntropyKernels::kCuda = {.forward = Forward,
                                                        .backward = Backward};

}  // namespace tessera
