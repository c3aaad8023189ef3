#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/linear/few_rows.h"
#include "framework/ops/linear/few_rows_kernel.h"

namespace tessera {
namespace cuda {

void MultiplyFewRows(const FewRowsSpec& spec, const FewRowsTensors& tensors) {
  const auto address = [](const at::Tensor& t) -> const void* {
    return t.defined() ? t.const_data_ptr() : nullptr;
  };
  const FewRowsParams params = {
      .operands = FloatTypeOf(tensors.weight),
      .x_type = FloatTypeOf(tensors.x),
      .y_type = FloatTypeOf(tensors.y),
      .rows = static_cast<int>(tensors.x.size(0)),
      .in = tensors.x.size(1),
      .out = tensors.y.size(1),
      .x = tensors.x.const_data_ptr(),
      .gain = static_cast<const float*>(address(tensors.gain)),
      .eps = static_cast<float>(spec.norm_eps.value_or(0)),
      .weight = tensors.weight.const_data_ptr(),
      .swiglu = spec.after == AfterFewRows::kSwiGlu,
      .residual = address(tensors.residual),
      .y = tensors.y.mutable_data_ptr()};
  ThrowIfError(Launch(tensors.x, "the kernel of products of few rows",
                      LaunchFewRows, params));
}

}  // namespace cuda
}  // namespace tessera
