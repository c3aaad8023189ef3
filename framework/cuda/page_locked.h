#ifndef FRAMEWORK_CUDA_PAGE_LOCKED_H_
#define FRAMEWORK_CUDA_PAGE_LOCKED_H_

#include <atomic>
#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"

namespace tessera {

// Page-locked host memory, from which a GPU copies asynchronously, of
// LibTorch's allocator, which reuses it once such copies of the whole tensor
// are done. Unlike a tensor with pinned_memory(true) it may be freed after the
// GPU has failed: then LibTorch throws in a destructor, which ends the process.
at::Tensor PageLocked(at::IntArrayRef shape, at::ScalarType dtype);
// Host memory for copies to and from `device`: PageLocked() for a GPU.
at::Tensor HostMemoryFor(c10::Device device, at::IntArrayRef shape,
                         at::ScalarType dtype);

// `numel` elements of page-locked host memory that are returned to the system
// when freed; LibTorch's allocator rounds up to a power of two and keeps them.
// Takes the pages from the system before it has the driver lock them, because
// other threads cannot launch work while the driver does. On a CPU the memory
// is pageable. ResourceExhausted if there is not enough; Cancelled soon after
// `stop` is set.
absl::StatusOr<at::Tensor> LargePageLocked(int64_t numel, at::ScalarType dtype,
                                           c10::Device device,
                                           const std::atomic<bool>& stop);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_PAGE_LOCKED_H_
