#include "framework/optim/non_finite_latch.h"

#include <ATen/ATen.h>

namespace tessera {

NonFiniteLatch::NonFiniteLatch(int64_t next_step, at::Device device)
    : step_(at::full({1}, next_step, at::device(device).dtype(at::kLong))),
      first_bad_step_(at::full_like(step_, -1)),
      skip_(at::zeros({1}, at::device(device).dtype(at::kBool))) {}

const at::Tensor& NonFiniteLatch::Update(const at::Tensor& nonfinite) {
  const at::Tensor is_first = nonfinite.logical_and(skip_.logical_not());
  first_bad_step_.copy_(at::where(is_first, step_, first_bad_step_));
  skip_.logical_or_(nonfinite);
  step_.add_(1);
  return skip_;
}

}  // namespace tessera
