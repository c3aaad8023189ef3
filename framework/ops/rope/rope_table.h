#ifndef FRAMEWORK_OPS_ROPE_ROPE_TABLE_H_
#define FRAMEWORK_OPS_ROPE_ROPE_TABLE_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

// Which two elements of a head form a pair.
enum class RopeLayout {
  kInterleaved,  // (0, 1), (2, 3), ...: RoFormer, CS336
  kHalved,       // (0, D/2), (1, D/2 + 1), ...: Llama checkpoints of HF
};

// cos and sin of position * theta^(-2i/D), i in [0, D/2) (Su et al.,
// "RoFormer", 2021, equation 15). FP32 (computed in FP64), [positions, D/2].
struct RopeTable {
  at::Tensor cos, sin;
  RopeLayout layout = RopeLayout::kInterleaved;
  // [B, S], int64, contiguous: each token's position, which is below that of
  // the table's last row. Undefined: token s of a sequence is at position s.
  at::Tensor token_positions;

  // For kernels; null if undefined.
  const int64_t* token_positions_data() const {
    return token_positions.defined() ? token_positions.const_data_ptr<int64_t>()
                                     : nullptr;
  }

  static RopeTable Create(int64_t positions, int64_t head_dim, double theta,
                          RopeLayout layout, at::Device device);
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROPE_ROPE_TABLE_H_
