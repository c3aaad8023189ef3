#ifndef FRAMEWORK_OPTIM_SUM_OF_SQUARES_KERNEL_H_
#define FRAMEWORK_OPTIM_SUM_OF_SQUARES_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// A part of a gradient: elements [begin, begin + count) of a flat buffer.
struct SquaresSegment {
  int64_t begin, count;
};

// sums[s] = the sum of values[i]^2 over segment s, for `count` segments, which
// begin at multiples of 16 bytes. A segment is one block's work, so its bits
// depend on nothing else.
cudaError_t LaunchSumSegments(const void* values, FloatType type,
                              const SquaresSegment* segments, int count,
                              float* sums, cudaStream_t stream);

// *total = the sum of `sums`, in FP64 and one order, rounded once.
cudaError_t LaunchSumOfSegments(const float* sums, int count, float* total,
                                cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_SUM_OF_SQUARES_KERNEL_H_
