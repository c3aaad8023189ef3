#ifndef FRAMEWORK_OPS_ROPE_ROPE_H_
#define FRAMEWORK_OPS_ROPE_ROPE_H_

#include <cstdint>
#include <optional>

#include "framework/ops/rope/rope_table.h"
#include "framework/program/program.h"

namespace tessera {

// The table as program constants, shared by all layers.
struct RopeAngles {
  Value cos, sin;
  RopeLayout layout = RopeLayout::kInterleaved;
  // [B, S], int64, below the rows of the table; absent: s of each token.
  std::optional<Value> positions;
};
RopeAngles MakeRopeAngles(ProgramBuilder& b, int64_t positions,
                          int64_t head_dim, const RopeOptions& options);

// Rotates the first `rotated_heads` heads of a fused projection.
//   qkv: [B, S, heads, D]; heads in the order Q, K, V, so rotated_heads = H + G
//        leaves V unchanged
//   a token at position p, by default s, turns by row p of the table
//   returns the rotated qkv, in place if its memory is free
// Arithmetic in FP32 (FP64 for FP64). Backward reads the table and rotates the
// gradient by the opposite angle.
Value Rope(ProgramBuilder& b, Value qkv, const RopeAngles& angles,
           int64_t rotated_heads);

// How `op` rotates; nullopt if it is not this op. Its operands are qkv, cos,
// sin and, if there are any, the positions.
struct Rotation {
  RopeLayout layout = RopeLayout::kInterleaved;
  int64_t rotated_heads = 0;
};
std::optional<Rotation> RotationOf(const Op& op);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROPE_ROPE_H_
