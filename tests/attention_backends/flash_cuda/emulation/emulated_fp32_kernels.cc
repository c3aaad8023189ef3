// The FP32 kernels; see emulated_portable_kernels.cc.

#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"

// These headers use the declarations above.
#include "attention_backends/flash_cuda/fp32/backward.cu"
#include "attention_backends/flash_cuda/fp32/forward.cu"
