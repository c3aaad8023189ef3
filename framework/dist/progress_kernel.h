#ifndef FRAMEWORK_DIST_PROGRESS_KERNEL_H_
#define FRAMEWORK_DIST_PROGRESS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera {

// *word = (*count += by) + low. `count` is in device memory and `word` in host
// memory that the GPU can write; each launch of a graph counts on.
cudaError_t LaunchCount(int64_t* count, int64_t by, int64_t low, int64_t* word,
                        cudaStream_t stream);

// *word = value.
cudaError_t LaunchStore(int64_t value, int64_t* word, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROGRESS_KERNEL_H_
