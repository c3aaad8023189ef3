#ifndef FRAMEWORK_DIST_SUM_ADDENDS_KERNEL_H_
#define FRAMEWORK_DIST_SUM_ADDENDS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// sum[i] = addends[0][i] + addends[1][i] + ..., added in FP32 in that order and
// rounded once. `addends` holds `count` rows of `numel` values of `type`, as
// `sum` does; `sum` overlaps none of them.
cudaError_t LaunchSumAddends(const void* addends, int count, int64_t numel,
                             FloatType type, void* sum, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_SUM_ADDENDS_KERNEL_H_
