// LaunchSymmetricProduct() on a CPU.

#include "tests/attention_backends/flash_cuda/emulation/emulated_hopper.h"

// This header uses the declarations above.
#include "framework/optim/symmetric_product_kernel.cu"
