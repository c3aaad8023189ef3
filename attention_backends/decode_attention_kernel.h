#ifndef ATTENTION_BACKENDS_DECODE_ATTENTION_KERNEL_H_
#define ATTENTION_BACKENDS_DECODE_ATTENTION_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// As in cached_attention.h. D is a multiple of 8, at most 256.
struct DecodeAttentionParams {
  int b = 0, h = 0, g = 0, d = 0;
  const void* qkv = nullptr;  // [B, 1, H + 2 G, D]
  void* cache = nullptr;      // [T, 2, B G, D]
  // The token's position in its sequence, the same in all of them. This, the
  // tables and the cache's earlier rows must have been written before the last
  // kernel of the stream that LaunchEarly() did not launch.
  const int64_t* position = nullptr;
  // RoPE of queries and keys by row rope_positions[B] of the tables, [..., D /
  // 2]; null: they are already rotated.
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int64_t* rope_positions = nullptr;  // [B]
  bool halved = false;                      // RopeLayout::kHalved
  const float* sinks = nullptr;             // [H], or null
  void* o = nullptr;                        // [B, 1, H, D]
  float scale = 1, soft_cap = 0;
  int64_t before = 0;  // how many keys a query sees before its own
  // The keys of a head are divided among `splits` blocks. Above 1, `partials`
  // has [splits, B H, D + 2].
  int splits = 1;
  float* partials = nullptr;
};

cudaError_t LaunchDecodeAttention(const DecodeAttentionParams& params,
                                  FloatType type, cudaStream_t stream);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_DECODE_ATTENTION_KERNEL_H_
