#ifndef FRAMEWORK_CUDA_HOPPER_RING_CUH_
#define FRAMEWORK_CUDA_HOPPER_RING_CUH_

#include <cstdint>

namespace tessera {

// A position in a ring of stages; the parity changes with every round.
template <int kStages>
struct RingIndex {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_HOPPER_RING_CUH_
