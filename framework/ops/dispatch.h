#ifndef FRAMEWORK_OPS_DISPATCH_H_
#define FRAMEWORK_OPS_DISPATCH_H_

#include "framework/ops/host_ops.h"

#ifdef TESSERA_CUDA
#include "framework/ops/cuda_ops.h"
#endif

// Calls `function` of cuda:: where `tensor` lives on a GPU and this build has
// kernels, of host:: otherwise.
#ifdef TESSERA_CUDA
#define TESSERA_DISPATCH(tensor, function, ...) \
  (::tessera::cuda::HasKernels(tensor)          \
       ? ::tessera::cuda::function(__VA_ARGS__) \
       : ::tessera::host::function(__VA_ARGS__))
#else
#define TESSERA_DISPATCH(tensor, function, ...) \
  ::tessera::host::function(__VA_ARGS__)
#endif

#endif  // FRAMEWORK_OPS_DISPATCH_H_
