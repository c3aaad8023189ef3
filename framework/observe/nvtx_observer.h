#ifndef FRAMEWORK_OBSERVE_NVTX_OBSERVER_H_
#define FRAMEWORK_OBSERVE_NVTX_OBSERVER_H_

#include <memory>

#include "framework/base/phase_observer.h"

namespace tessera {

// Opens an NVTX range for each step, phase and op on the thread that begins it,
// for Nsight Systems. Only CUDA builds have it (framework/cuda/cuda_build.h).
// The phases of training:
//
//   warmup | measurement
//     step_7
//       prepare | forward | backward | reduce | clip | optimizer
//         block_3
//           attention
//             sdpa
//               scores | softmax | values
std::unique_ptr<PhaseObserver> CreateNvtxObserver();

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_NVTX_OBSERVER_H_
