#include "framework/cuda/page_locked.h"

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>

#include "framework/base/torch_status.h"

namespace tessera {

at::Tensor PageLocked(at::IntArrayRef shape, at::ScalarType dtype) {
  const int64_t bytes = c10::multiply_integers(shape) *
                        static_cast<int64_t>(c10::elementSize(dtype));
  at::DataPtr block = at::getHostAllocator(at::kCUDA)->allocate(bytes);
  const c10::DeleterFnPtr free_block = block.get_deleter();
  return at::for_blob(block.get(), shape)
      .deleter([free_block, context = block.release_context()](void*) {
        StatusFromTorch([&] { free_block(context); }).IgnoreError();
      })
      .options(at::dtype(dtype))
      .make_tensor();
}

}  // namespace tessera
