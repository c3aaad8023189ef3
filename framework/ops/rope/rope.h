#ifndef FRAMEWORK_OPS_ROPE_ROPE_H_
#define FRAMEWORK_OPS_ROPE_ROPE_H_

#include <cstdint>

#include "framework/ops/rope/rope_table.h"
#include "framework/program/program.h"

namespace tessera {

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

#endif  // FRAMEWORK_OPS_ROPE_ROPE_H_
