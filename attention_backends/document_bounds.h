#ifndef ATTENTION_BACKENDS_DOCUMENT_BOUNDS_H_
#define ATTENTION_BACKENDS_DOCUMENT_BOUNDS_H_

#include <cstdint>

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

// Sets the scores of keys of other documents to -infinity.
//   bounds: AttentionArgs::documents of these queries, [2, B, queries]
//   scores: [B, heads, queries, keys], of the keys from `first_key` on
//   hide_later: false if the mask hides every key after a query's own
void HideOtherDocuments(const at::Tensor& bounds, int64_t first_key,
                        bool hide_later, const at::Tensor& scores);
// Its workspace.
int64_t HideOtherDocumentsBytes(int64_t batch, int64_t queries, int64_t keys);

namespace cuda {
// On a GPU. Only in CUDA builds (framework/cuda/cuda_build.h).
void DocumentBounds(const at::Tensor& positions, const at::Tensor& bounds);
}  // namespace cuda

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_DOCUMENT_BOUNDS_H_
