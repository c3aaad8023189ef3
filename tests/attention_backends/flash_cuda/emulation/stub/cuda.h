#ifndef TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_STUB_CUDA_H_
#define TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_STUB_CUDA_H_

// Replaces CUDA's header when kernels are compiled for a CPU; emulated_hopper.h
// has the declarations that they use.

#endif  // TESTS_ATTENTION_BACKENDS_FLASH_CUDA_EMULATION_STUB_CUDA_H_
