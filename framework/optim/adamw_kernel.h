#ifndef FRAMEWORK_OPTIM_ADAMW_KERNEL_H_
#define FRAMEWORK_OPTIM_ADAMW_KERNEL_H_

#include <cuda_runtime_api.h>

#include "framework/optim/adamw_update.h"

namespace tessera {

// One AdamW step over flat device buffers, in stream order: a small launch
// advances scalars.step and writes prepared[kMaxAdamWGroups] (device scratch),
// then one launch updates all elements. Reads no host value that changes from
// step to step, so a CUDA graph can replay it. If *skip is set, nothing
// changes. cudaErrorInvalidValue for dtypes that VisitAdamWDtypes() does not
// support.
cudaError_t LaunchAdamW(const AdamWBuffers& buffers,
                        const AdamWScalars& scalars,
                        const AdamWOptions& options,
                        AdamWCoefficients* prepared, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_KERNEL_H_
