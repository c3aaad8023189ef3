#ifndef ATTENTION_BACKENDS_DOCUMENT_BOUNDS_H_
#define ATTENTION_BACKENDS_DOCUMENT_BOUNDS_H_

#include "ATen/core/Tensor.h"

namespace tessera {

// Where the documents of packed sequences lie, from the positions of their
// tokens: a document begins where the position is 0, and ends before the next
// one or with the sequence.
//   positions: [M, B, S], int64, contiguous; 0 for the first token of each
//              sequence, else 0 or one more than that of the token before
//   bounds: [M, 2, B, S], int32, contiguous; bounds[m] is
//           AttentionArgs::documents of micro-batch m; written
// Enqueued on the current stream; does not wait.
void DocumentBounds(const at::Tensor& positions, const at::Tensor& bounds);

namespace cuda {
// On a GPU. Only in CUDA builds (framework/cuda/cuda_build.h).
void DocumentBounds(const at::Tensor& positions, const at::Tensor& bounds);
}  // namespace cuda

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_DOCUMENT_BOUNDS_H_
