#ifndef ATTENTION_BACKENDS_DOCUMENT_BOUNDS_KERNEL_H_
#define ATTENTION_BACKENDS_DOCUMENT_BOUNDS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera {

// As in document_bounds.h.
struct DocumentBoundsParams {
  int micro_batches = 0, batch = 0, sequence = 0;  // M, B, S
  const int64_t* positions = nullptr;              // [M, B, S]
  int* bounds = nullptr;                           // [M, 2, B, S]
};
cudaError_t LaunchDocumentBounds(const DocumentBoundsParams& params,
                                 cudaStream_t stream);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_DOCUMENT_BOUNDS_KERNEL_H_
