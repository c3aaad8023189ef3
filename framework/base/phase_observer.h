#ifndef FRAMEWORK_BASE_PHASE_OBSERVER_H_
#define FRAMEWORK_BASE_PHASE_OBSERVER_H_

#include "absl/strings/string_view.h"

namespace tessera {

// Receives which part of a training step the host is issuing. Phases nest, and
// each is named by its own segment; the observer joins them: "step_7" >
// "forward" > "block_3" > "attention" > "scores".
//
// Implementations live in framework/observe (NVTX ranges). Code in lower
// folders sees only this interface. The pointer may be null: a PhaseScope
// without an observer costs one comparison.
class PhaseObserver {
 public:
  virtual ~PhaseObserver() = default;
  virtual void Begin(absl::string_view segment) = 0;
  virtual void End() = 0;
};

class PhaseScope {
 public:
  PhaseScope(PhaseObserver* observer, absl::string_view segment)
      : observer_(observer) {
    if (observer_ != nullptr) observer_->Begin(segment);
  }
  ~PhaseScope() {
    if (observer_ != nullptr) observer_->End();
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseObserver* const observer_;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_PHASE_OBSERVER_H_
