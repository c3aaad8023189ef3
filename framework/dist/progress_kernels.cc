#include "framework/dist/progress_kernels.h"

#include <ATen/ATen.h>

#include "framework/cuda/launch.h"
#include "framework/dist/progress_kernel.h"

namespace tessera {
namespace cuda {

absl::Status Count(const at::Tensor& counts, int i, int64_t by, int64_t low,
                   int64_t* word) {
  return Launch(counts, "the progress kernel", LaunchCount,
                counts.mutable_data_ptr<int64_t>() + i, by, low, word);
}

absl::Status Store(const at::Tensor& counts, int64_t value, int64_t* word) {
  return Launch(counts, "the progress kernel", LaunchStore, value, word);
}

}  // namespace cuda
}  // namespace tessera
