// The portable kernels and what launches them, compiled for the CPU:
// BUILD.bazel does so for each head dim.

#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"

// These use what comes above.
#include "attention_backends/flash_cuda/portable/backward.cu"
#include "attention_backends/flash_cuda/portable/forward.cu"
