#ifndef FRAMEWORK_OPS_ROPE_ROPE_KERNELS_H_
#define FRAMEWORK_OPS_ROPE_ROPE_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/ops/rope/rope_table.h"

namespace tessera {

// Kernels of RoPE (rope.h), in place.
struct RopeKernels {
  // x: [B, S, heads, D], contiguous. `inverse` rotates by the opposite angle.
  void (*rotate)(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
                 bool inverse);

  static const RopeKernels kReference;
  static const RopeKernels kCpu;  // FP32
  static const RopeKernels kCuda;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROPE_ROPE_KERNELS_H_
