#ifndef FRAMEWORK_PROGRAM_RANDOM_STATE_H_
#define FRAMEWORK_PROGRAM_RANDOM_STATE_H_

#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"

namespace tessera {

// The state of LibTorch's default generators for one device, so that an op can
// draw the same numbers again. While a CUDA graph is captured, LibTorch counts
// draws separately from this state.
class RandomState {
 public:
  static RandomState Now(at::Device device);
  void Restore() const;
  // The state of the CPU's generator, then of the device's.
  std::vector<at::Tensor>& values() { return values_; }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> values_;
};

// Sets the generators to `state` during its lifetime, then restores them.
class ScopedRandomState {
 public:
  ScopedRandomState(const RandomState& state, at::Device device)
      : before_(RandomState::Now(device)) {
    state.Restore();
  }
  // Also after the device has failed, when nothing can be restored.
  ~ScopedRandomState();
  ScopedRandomState(const ScopedRandomState&) = delete;
  ScopedRandomState& operator=(const ScopedRandomState&) = delete;

 private:
  const RandomState before_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_RANDOM_STATE_H_
