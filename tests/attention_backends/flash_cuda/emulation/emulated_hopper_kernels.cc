// As emulated_portable_kernels.cc, the Hopper kernels.

#include "tests/attention_backends/flash_cuda/emulation/emulated_hopper.h"

// These use what comes above.
#include "attention_backends/flash_cuda/hopper/backward.cu"
#include "attention_backends/flash_cuda/hopper/forward.cu"
