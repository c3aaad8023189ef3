#include "ATen/ATen.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/embedding/embedding_kernels.h"
#include "framework/ops/embedding/embedding_launch.h"

namespace tessera {

void EmbeddingBackwardOnCuda(const at::Tensor& ids, const at::Tensor& dx,
                             const GradTarget& table) {
  const at::Tensor places = ids.contiguous(), rows = dx.contiguous();
  const int64_t vocab = table.grad.size(0);
  const at::Tensor workspace =
      at::empty({EmbeddingBackwardWorkspace(ids.numel(), vocab)},
                ids.options().dtype(at::kInt));
  const EmbeddingBackwardParams params = {
      .tokens = ids.numel(),
      .vocab = vocab,
      .width = table.grad.size(1),
      .ids = places.const_data_ptr<int64_t>(),
      .dx_type = FloatTypeOf(rows),
      .dx = rows.const_data_ptr(),
      .grad_type = FloatTypeOf(table.grad),
      .accumulate = table.accumulate,
      .grad = table.grad.mutable_data_ptr(),
      .workspace = workspace.mutable_data_ptr<int>()};
  ThrowIfError(Launch(dx, "The embedding's backward kernel",
                      LaunchEmbeddingBackward, params));
}

}  // namespace tessera
