// As emulated_portable_kernels.cc, the FP32 kernels.

#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"

// These use what comes above.
#include "attention_backends/flash_cuda/fp32/backward.cu"
#include "attention_backends/flash_cuda/fp32/forward.cu"
