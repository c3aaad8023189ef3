#ifndef FRAMEWORK_OPS_ROPE_H_
#define FRAMEWORK_OPS_ROPE_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/program/program.h"

namespace tessera {

// Which two elements of a head rotate together.
enum class RopeLayout {
  kInterleaved,  // (0, 1), (2, 3), ...: RoFormer, CS336
  kHalved,       // (0, D/2), (1, D/2 + 1), ...: Llama checkpoints of HF
};

// cos and sin of position * theta^(-2i/D), i in [0, D/2) (Su et al.,
// "RoFormer", 2021, equation 15). FP32 (computed in FP64), [positions, D/2].
struct RopeTable {
  at::Tensor cos, sin;
  RopeLayout layout = RopeLayout::kInterleaved;

  static RopeTable Create(int64_t positions, int64_t head_dim, double theta,
                          RopeLayout layout, at::Device device);
};

// The table as constants of a program, which all layers share.
struct RopeAngles {
  Value cos, sin;
  RopeLayout layout = RopeLayout::kInterleaved;
};
RopeAngles MakeRopeAngles(ProgramBuilder& b, int64_t positions,
                          int64_t head_dim, double theta, RopeLayout layout);

// Rotates the first `rotated_heads` heads of a fused projection.
//   qkv: [B, S, heads, D]; heads ordered Q, K, V, so that rotated_heads = H + G
//        leaves V untouched
//   position 0 of the table belongs to s = 0; S <= table positions
//   returns qkv, rotated, in its own memory where that is free
// Arithmetic in FP32 (FP64 for FP64). Backward reads the table and rotates the
// gradient by the opposite angle.
Value Rope(ProgramBuilder& b, Value qkv, const RopeAngles& angles,
           int64_t rotated_heads);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROPE_H_
