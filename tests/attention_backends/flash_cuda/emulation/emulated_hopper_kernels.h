#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_HOPPER_KERNELS_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_HOPPER_KERNELS_H_

#include "attention_backends/flash_cuda/flash_params.h"

namespace tessera::emulated {

// The Hopper kernels for one head dim in BF16. Forward with the tiles for short
// or for long sequences. Backward: the main kernel; what comes before and after
// it in plain loops.
template <int kHeadDim>
void HopperForward(const flash::ForwardParams& params, bool short_rows);
template <int kHeadDim>
void HopperBackward(const flash::BackwardParams& params);

}  // namespace tessera::emulated

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_EMULATED_HOPPER_KERNELS_H_
