#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_STUB_CUDA_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_STUB_CUDA_H_

// In place of CUDA's, where kernels' headers are compiled for the CPU:
// emulated_hopper.h has what they use of it.

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_STUB_CUDA_H_
