#include "attention_backends/document_bounds.h"
#include "attention_backends/document_bounds_kernel.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/launch.h"

namespace tessera {
namespace cuda {

void DocumentBounds(const at::Tensor& positions, const at::Tensor& bounds) {
  const DocumentBoundsParams params = {
      .micro_batches = static_cast<int>(positions.size(0)),
      .batch = static_cast<int>(positions.size(1)),
      .sequence = static_cast<int>(positions.size(2)),
      .positions = positions.const_data_ptr<int64_t>(),
      .bounds = bounds.mutable_data_ptr<int>()};
  ThrowIfError(
      Launch(positions, "the documents' kernel", LaunchDocumentBounds, params));
}

}  // namespace cuda
}  // namespace tessera
