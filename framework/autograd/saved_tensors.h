#ifndef FRAMEWORK_AUTOGRAD_SAVED_TENSORS_H_
#define FRAMEWORK_AUTOGRAD_SAVED_TENSORS_H_

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"

namespace tessera {

// Counts what autograd keeps for the backward pass while a meter is in scope:
// the activations of a training step.
//
//   SavedTensorMeter meter({store->master(), store->shadow()});
//   at::Tensor loss = model.Forward(batch);
//   meter.live_bytes();  // held now, freed as the backward pass goes on
//
// Memory counts once however many ops save it or views of it, and counts whole
// even when a saved view covers a part. What ops keep outside
// save_for_backward (tables, parameters by address) is not counted.
//
// At most one meter at a time in a process. The first one replaces LibTorch's
// autograd engine by one that differs in this hook alone, for the rest of the
// process; no backward pass may be running.
class SavedTensorMeter {
 public:
  // Memory of `not_counted`, such as the parameters, is left out.
  explicit SavedTensorMeter(absl::Span<const at::Tensor> not_counted = {});
  ~SavedTensorMeter();
  SavedTensorMeter(const SavedTensorMeter&) = delete;
  SavedTensorMeter& operator=(const SavedTensorMeter&) = delete;

  // Held at this moment, and the most held so far.
  int64_t live_bytes() const;
  int64_t peak_bytes() const;

  // Shared with the saved tensors, which may outlive the meter.
  class Ledger;

 private:
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace tessera

#endif  // FRAMEWORK_AUTOGRAD_SAVED_TENSORS_H_
