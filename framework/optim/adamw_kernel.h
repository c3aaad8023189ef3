#ifndef FRAMEWORK_OPTIM_ADAMW_KERNEL_H_
#define FRAMEWORK_OPTIM_ADAMW_KERNEL_H_

#include <cuda_runtime_api.h>

#include "framework/optim/adamw_update.h"
#include "framework/optim/ema_math.h"

namespace tessera {

// One AdamW step over flat device buffers. Reads no host value that changes
// from step to step, so a CUDA graph can replay it.

// Writes scalars.skips and, unless it is set, prepared[kMaxAdamWGroups] (device
// memory), and advances scalars.step.
cudaError_t LaunchAdamWPrepare(const AdamWScalars& scalars,
                               const AdamWOptions& options,
                               AdamWCoefficients* prepared,
                               cudaStream_t stream);
// Updates elements [begin, end), multiples of kAdamWChunk, unless *skips is
// set. cudaErrorInvalidValue for dtypes that VisitAdamWDtypes() does not
// support.
cudaError_t LaunchAdamWUpdate(const AdamWBuffers& buffers, int64_t begin,
                              int64_t end, const bool* skips,
                              const AdamWCoefficients* prepared,
                              cudaStream_t stream);
// A pass of the moving average over the same elements. The same error.
cudaError_t LaunchEma(const AdamWBuffers& buffers, const EmaBuffers& ema,
                      EmaPass pass, int64_t begin, int64_t end,
                      cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_KERNEL_H_
