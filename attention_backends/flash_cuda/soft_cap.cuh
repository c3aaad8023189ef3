#ifndef ATTENTION_BACKENDS_FLASH_CUDA_SOFT_CAP_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_SOFT_CAP_CUH_

#include <cmath>
#include <type_traits>

#include "attention_backends/flash_cuda/flash_params.h"

// Scores with a soft cap c: s' = c tanh(s / c), where s = scale q k. Between
// two products the tiles of kernels with kSoftCap hold tanh(s / c) instead of
// q k, and exponents are computed from them with c in the place of the scale.

namespace tessera {
namespace flash {

// The factor that turns the entries of a tile into scores; positive.
template <bool kSoftCap>
__device__ __forceinline__ float ScoreScale(const ForwardParams& p) {
  return kSoftCap ? p.soft_cap : p.scale;
}

// Turns q k into tanh(factor q k). On a GPU tanhf has no branch and errs by at
// most 2 units in the last place, also next to 0, where FP32 scores need it.
template <typename Row, int kRows>
__device__ __forceinline__ void TanhOfScores(float factor,
                                             Row (&scores)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if constexpr (std::is_array_v<Row>) {
      TanhOfScores(factor, scores[i]);
    } else {
      scores[i] = tanhf(factor * scores[i]);
    }
  }
}

// Turns q k into tanh(s / c) if scores have a cap. Call before the mask, which
// stores -infinity.
template <bool kSoftCap, typename Row, int kRows>
__device__ __forceinline__ void ApplySoftCap(const ForwardParams& p,
                                             Row (&scores)[kRows]) {
  if constexpr (kSoftCap) TanhOfScores(p.scale / p.soft_cap, scores);
}

// ds' / ds = 1 - tanh^2(s / c), by which the gradient of an entry of a tile is
// multiplied; 1 without a cap. 0 for masked entries, whose gradient is 0, too.
template <bool kSoftCap>
__device__ __forceinline__ float SoftCapSlope(float entry) {
  if constexpr (kSoftCap) {
    const float t = fmaxf(entry, -1);
    return fmaf(-t, t, 1);
  } else {
    return 1;
  }
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_SOFT_CAP_CUH_
