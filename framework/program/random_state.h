#ifndef FRAMEWORK_PROGRAM_RANDOM_STATE_H_
#define FRAMEWORK_PROGRAM_RANDOM_STATE_H_

#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"

namespace tessera {

// The state of LibTorch's default generators for one device at one moment, so
// that an op can draw the same numbers again. Inside a CUDA graph's capture
// LibTorch counts draws apart from this state.
class RandomState {
 public:
  static RandomState Now(at::Device device);
  void Restore() const;
  bool defined() const { return !generators_.empty(); }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> values_;
};

// Restores `state` while it lives, and puts back what it found.
class ScopedRandomState {
 public:
  ScopedRandomState(const RandomState& state, at::Device device)
      : before_(RandomState::Now(device)) {
    state.Restore();
  }
  ~ScopedRandomState() { before_.Restore(); }
  ScopedRandomState(const ScopedRandomState&) = delete;
  ScopedRandomState& operator=(const ScopedRandomState&) = delete;

 private:
  const RandomState before_;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_RANDOM_STATE_H_
