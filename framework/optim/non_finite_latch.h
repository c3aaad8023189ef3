#ifndef FRAMEWORK_OPTIM_NON_FINITE_LATCH_H_
#define FRAMEWORK_OPTIM_NON_FINITE_LATCH_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

// Stops the weights from changing after a step with a loss or gradient that is
// not finite, without a check on the host in each step: `skip` is set from that
// step on. When the host logs, it reads first_bad_step() and ends the run. For
// overflows that no loss scale can fix.
//
// The state is on the device and updated in place, so a CUDA graph can capture
// Update().
class NonFiniteLatch {
 public:
  // `next_step` is the step of the first Update().
  NonFiniteLatch(int64_t next_step, at::Device device);

  // Call this once per step, after the gradient's norm. nonfinite: bool [1],
  // whether the step has such an overflow. Returns skip, bool [1], in stable
  // storage: whether this or an earlier step had one.
  const at::Tensor& Update(const at::Tensor& nonfinite);

  // int64 [1]; -1 if all steps were finite.
  const at::Tensor& first_bad_step() const { return first_bad_step_; }

 private:
  at::Tensor step_, first_bad_step_;  // int64 [1]
  at::Tensor skip_;                   // bool [1]
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_NON_FINITE_LATCH_H_
