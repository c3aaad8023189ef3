// The portable kernels and their launches, compiled for a CPU. BUILD.bazel
// compiles this file once for each head dim.

#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"

// These headers use the declarations above.
#include "attention_backends/flash_cuda/portable/backward.cu"
#include "attention_backends/flash_cuda/portable/forward.cu"
