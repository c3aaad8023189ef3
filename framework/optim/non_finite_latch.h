#ifndef FRAMEWORK_OPTIM_NON_FINITE_LATCH_H_
#define FRAMEWORK_OPTIM_NON_FINITE_LATCH_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

// Stops the weights from changing once a step's loss or gradient is not finite,
// without the host looking at each step: from that step on `skip` is set, until
// the host reads first_bad_step() where it logs anyway and ends the run. For
// steps that no loss scale mends.
//
// State is updated in place on the device; a CUDA graph captures Update().
class NonFiniteLatch {
 public:
  // `next_step`: the step that the first Update() belongs to.
  NonFiniteLatch(int64_t next_step, at::Device device);

  // Once per step, after its gradient's norm. nonfinite: bool [1], whether the
  // step is such a one. Returns
  // skip, bool [1], in stable storage: this step or one before it was bad.
  const at::Tensor& Update(const at::Tensor& nonfinite);

  // int64 [1]: -1 while all was finite.
  const at::Tensor& first_bad_step() const { return first_bad_step_; }

 private:
  at::Tensor step_, first_bad_step_;  // int64 [1]
  at::Tensor skip_;                   // bool [1]
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_NON_FINITE_LATCH_H_
