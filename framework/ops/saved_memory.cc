#include "framework/ops/saved_memory.h"

#include "ATen/ATen.h"

namespace tessera {

at::Tensor TakeGradientMemory(const at::Tensor& saved) {
  // The node's own handle and the caller's.
  const bool sole = saved.use_count() == 2 && saved.storage().use_count() == 1;
  if (!sole || !saved.is_contiguous()) {
    return at::empty(saved.sizes(), saved.options());
  }
  saved.unsafeGetTensorImpl()->bump_version();
  return saved.tensor_data();
}

}  // namespace tessera
