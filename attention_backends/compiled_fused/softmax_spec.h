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

// The parameters for which softmax_kernels.cuh is compiled. Batch, heads and
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

// For messages: "BFloat16, 1024 queries x 1024 keys, causal".
std::string ToString(const SoftmaxSpec& spec);

// How threads share rows; depends only on the spec. A pack is what a thread
// moves at once: the largest power of two of elements that divides a row, up to
// 16 bytes, so that every pack is aligned.
struct SoftmaxGeometry {
  int pack = 1;  // elements
  // Forward: threads per row, a power of two from 32 to 1024, and packs that
  // each holds in registers; 0 packs if rows are too long for that and are read
  // twice.
  int row_threads = 32;
  int row_packs = 0;
  // Forward: threads per CUDA block, which takes one or more rows.
  int block_threads = 128;
  // Backward: each lane of a warp takes `chunk_packs` packs of one row.
  int chunk_packs = 1;
  int64_t chunks = 1;  // of a row

  int rows_per_block() const { return block_threads / row_threads; }
};
SoftmaxGeometry GeometryOf(const SoftmaxSpec& spec);

// Threads per CUDA block of the backward kernel; its warps work independently.
inline constexpr int kBackwardThreads = 128;

// The preprocessor definitions of softmax_kernels.cuh, as compiler options.
std::vector<std::string> DefinesOf(const SoftmaxSpec& spec);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_SPEC_H_
