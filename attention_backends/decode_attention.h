#ifndef ATTENTION_BACKENDS_DECODE_ATTENTION_H_
#define ATTENTION_BACKENDS_DECODE_ATTENTION_H_

#include <algorithm>
#include <cstdint>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_op.h"
#include "framework/ops/rope/rope_table.h"

namespace tessera {

// The kernel of CachedAttention() on a GPU.

// How many blocks divide the keys of a head: as many as fill the GPU, with 128
// keys or more each once the text fills the cache; 0 if the kernel does not
// support the problem.
inline int DecodeAttentionSplits(const AttentionProblem& p,
                                 int multiprocessors) {
  constexpr int64_t kLeastKeys = 128, kMostBlocks = 65535;  // of a grid's y
  if (!p.cuda || p.dtype == at::kDouble || p.d % 8 != 0 || p.d > 256 ||
      p.b * p.g > kMostBlocks) {
    return 0;
  }
  const int64_t keys = p.mask.before == kAllKeys
                           ? p.t
                           : std::min<int64_t>(p.t, p.mask.before + 1);
  return static_cast<int>(
      std::clamp<int64_t>(2 * multiprocessors / (p.b * p.g), 1,
                          std::max<int64_t>(1, keys / kLeastKeys)));
}

// Memory that a call allocates: sums over the keys of each block.
inline int64_t DecodeAttentionBytes(const AttentionProblem& p, int splits) {
  if (splits == 1) return 0;
  return splits * p.b * p.h * (p.d + 2) * static_cast<int64_t>(sizeof(float));
}

// The operands of CachedAttention().
struct DecodeAttentionTensors {
  at::Tensor qkv, cache, position;
  at::Tensor sinks;  // may be undefined
  // Rotates queries and keys first (framework/ops/rope). Its tensors may be
  // undefined.
  RopeTable rope;
};

namespace cuda {

// Computes CachedAttention() on a GPU. Only in CUDA builds. Throws LibTorch's
// exceptions.
void DecodeAttention(const SelfAttentionSpec& spec, int splits,
                     const DecodeAttentionTensors& tensors,
                     const at::Tensor& o);

}  // namespace cuda
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_DECODE_ATTENTION_H_
