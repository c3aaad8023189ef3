#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/linear/few_rows.h"
#include "framework/ops/linear/few_rows_kernel.h"

namespace tessera {

void MultiplyFewRows(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& y) {
  const FewRowsParams params = {.rows = static_cast<int>(x.size(0)),
                                .in = x.size(1),
                                .out = weight.size(0),
                                .x = x.const_data_ptr(),
                                .weight = weight.const_data_ptr(),
                                .y = y.mutable_data_ptr()};
  ThrowIfError(Launch(x, "the kernel of products of few rows", LaunchFewRows,
                      params, FloatTypeOf(x), FloatTypeOf(y)));
}

}  // namespace tessera
