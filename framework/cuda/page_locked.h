#ifndef FRAMEWORK_CUDA_PAGE_LOCKED_H_
#define FRAMEWORK_CUDA_PAGE_LOCKED_H_

#include "ATen/core/Tensor.h"

namespace tessera {

// Page-locked host memory, from which a GPU copies asynchronously, of
// LibTorch's allocator, which reuses it once such copies of the whole tensor
// are done. Unlike a tensor with pinned_memory(true) it may be freed after the
// GPU has failed: then LibTorch throws in a destructor, which ends the process.
at::Tensor PageLocked(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_PAGE_LOCKED_H_
