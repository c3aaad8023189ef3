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

// The change of RoPE's frequencies f by which Llama 3.1 extends its context
// ("The Llama 3 Herd of Models", 2024, section 3.4; Hugging Face's rope_type
// "llama3"). Over the original context L, frequency f makes n = f L / (2 pi)
// turns:
//   f <- f ((1 - s) / factor + s), s = clamp((n - low) / (high - low), 0, 1)
struct RopeScaling {
  double factor = 1;  // 1: no change
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 8192;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct RopeOptions {
  double theta = 10000;
  RopeLayout layout = RopeLayout::kInterleaved;
  RopeScaling scaling;
};

// cos and sin of position * theta^(-2i/D), i in [0, D/2) (Su et al.,
// "RoFormer", 2021, equation 15), under the scaling. FP32 (computed in FP64),
// [positions, D/2].
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

  static RopeTable Create(int64_t positions, int64_t head_dim,
                          const RopeOptions& options, at::Device device);
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROPE_ROPE_TABLE_H_
