#ifndef FRAMEWORK_OPTIM_SUM_OF_SQUARES_KERNEL_H_
#define FRAMEWORK_OPTIM_SUM_OF_SQUARES_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// Number of blocks in the first pass. It is constant so that the order of
// additions, and hence the result's bits, do not depend on the GPU. 128
// multiprocessors hold 1024 blocks of 256 threads.
inline constexpr int kSumOfSquaresBlocks = 1024;

// *sum = sum of values[i]^2, with two launches in stream order. `values` is
// 16-byte aligned; `partial` is device scratch of kSumOfSquaresBlocks floats.
cudaError_t LaunchSumOfSquares(const void* values, FloatType type,
                               int64_t count, float* partial, float* sum,
                               cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_SUM_OF_SQUARES_KERNEL_H_
