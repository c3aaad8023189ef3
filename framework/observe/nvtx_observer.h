#ifndef FRAMEWORK_OBSERVE_NVTX_OBSERVER_H_
#define FRAMEWORK_OBSERVE_NVTX_OBSERVER_H_

#include <memory>

#include "framework/base/phase_observer.h"

namespace tessera {

// Opens an NVTX range for each phase, for Nsight Systems, on the thread that
// begins the phase. Only CUDA builds have it (framework/cuda/cuda_build.h).
// Phases of training:
//
//   warmup | measurement
//     step_7
//       forward | backward | optimizer
//         block_3
//           attention
//             scores | softmax | values
std::unique_ptr<PhaseObserver> CreateNvtxObserver();

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_NVTX_OBSERVER_H_
