#ifndef FRAMEWORK_OPS_ROPE_ROPE_LAUNCH_H_
#define FRAMEWORK_OPS_ROPE_ROPE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

struct RopeParams {
  FloatType type = FloatType::kFloat;
  bool halved = false;
  bool inverse = false;
  int64_t tokens = 0;     // B S
  int64_t positions = 0;  // S
  int heads = 0, rotated_heads = 0, head_dim = 0;
  const float* cos = nullptr;                // [S, D / 2]
  const float* sin = nullptr;                // [S, D / 2]
  const int64_t* token_positions = nullptr;  // [B S]; null: s of each token
  void* x = nullptr;                         // [B, S, heads, D]; in place
};
cudaError_t LaunchRope(const RopeParams& params, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROPE_ROPE_LAUNCH_H_
