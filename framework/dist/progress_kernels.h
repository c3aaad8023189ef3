#ifndef FRAMEWORK_DIST_PROGRESS_KERNELS_H_
#define FRAMEWORK_DIST_PROGRESS_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"

namespace tessera {
namespace cuda {

// progress_kernel.h on LibTorch's current stream of the device of `counts`,
// INT64, whose element `i` counts for `word`. Only in CUDA builds
// (framework/cuda/cuda_build.h).
absl::Status Count(const at::Tensor& counts, int i, int64_t by, int64_t low,
                   int64_t* word);
absl::Status Store(const at::Tensor& counts, int64_t value, int64_t* word);

}  // namespace cuda
}  // namespace tessera

#endif  // FRAMEWORK_DIST_PROGRESS_KERNELS_H_
