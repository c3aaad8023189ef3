#ifndef FRAMEWORK_OPTIM_ADAMW_KERNEL_H_
#define FRAMEWORK_OPTIM_ADAMW_KERNEL_H_

#include <cuda_runtime_api.h>

#include "framework/optim/adamw_update.h"

namespace tessera {

// One AdamW step over flat device buffers, in stream order: a one-thread launch
// that advances scalars.step and writes *prepared, device scratch, then one
// launch over all elements. Reads nothing on the host that changes from step to
// step, so a CUDA graph replays it. With *skip set no byte changes.
// cudaErrorInvalidValue for dtypes that VisitAdamWDtypes() has not.
cudaError_t LaunchAdamW(const AdamWBuffers& buffers,
                        const AdamWScalars& scalars,
                        const AdamWOptions& options, AdamWStep* prepared,
                        cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_KERNEL_H_
