// The Hopper kernels; see emulated_portable_kernels.cc.

#include "tests/attention_backends/flash_cuda/emulation/emulated_hopper.h"

// These headers use the declarations above.
#include "attention_backends/flash_cuda/hopper/backward.cu"
#include "attention_backends/flash_cuda/hopper/forward.cu"
