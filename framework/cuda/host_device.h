#ifndef FRAMEWORK_CUDA_HOST_DEVICE_H_
#define FRAMEWORK_CUDA_HOST_DEVICE_H_

// Marks an inline function that host compilers and nvcc compile, so that the
// CPU loop and the kernel share one definition.
#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TESSERA_HOST_DEVICE inline
#endif

#endif  // FRAMEWORK_CUDA_HOST_DEVICE_H_
