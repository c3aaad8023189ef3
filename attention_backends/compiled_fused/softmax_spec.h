#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_SPEC_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_SPEC_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attention_backends/compiled_fused/row_mask.h"
#include "framework/cuda/float_type.h"

namespace tessera {
namespace fused {

// What the kernels of softmax_kernels.cuh are compiled for. Batch, heads and
// head dim are arguments of a launch.
struct SoftmaxSpec {
  FloatType type = FloatType::kBFloat16;
  RowMask mask;

  friend bool operator==(const SoftmaxSpec&, const SoftmaxSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SoftmaxSpec& s) {
    return H::combine(std::move(h), s.type, s.mask);
  }
};

// "BFloat16, 1024 queries x 1024 keys, causal": for messages.
std::string ToString(const SoftmaxSpec& spec);

// How threads share rows, decided by the spec alone. A pack is what a thread
// moves at once: the most elements that divide a row, up to 16 bytes, so that
// every pack of every row is aligned.
struct SoftmaxGeometry {
  int pack = 1;  // elements
  // Forward: threads of a row, a power of two from 32 to 1024, and the packs
  // that each holds in registers; 0 packs: rows too long for that are read
  // twice.
  int row_threads = 32;
  int row_packs = 0;
  // Forward: threads of a block, row_threads times one or more rows.
  int block_threads = 128;
  // Backward: a warp takes `chunk_packs` packs per lane of one row.
  int chunk_packs = 1;
  int64_t chunks = 1;  // of a row

  int rows_per_block() const { return block_threads / row_threads; }
};
SoftmaxGeometry GeometryOf(const SoftmaxSpec& spec);

// Threads of a block of the backward kernel, each warp for itself.
inline constexpr int kBackwardThreads = 128;

// The preprocessor definitions that softmax_kernels.cuh wants, as options.
std::vector<std::string> DefinesOf(const SoftmaxSpec& spec);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_SPEC_H_
