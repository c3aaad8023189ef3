#ifndef FRAMEWORK_OBSERVE_PHASES_H_
#define FRAMEWORK_OBSERVE_PHASES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "framework/base/phase_observer.h"

namespace tessera {

// Observers of the phases that training goes through:
//
//   warmup | measurement
//     step_7
//       forward | backward | optimizer
//         block_3
//           attention
//             scores | softmax | values

// Keeps the joined path of every phase in the order in which they began:
// "step_7/forward/block_3".
class RecordingObserver : public PhaseObserver {
 public:
  void Begin(absl::string_view segment) override;
  void End() override;

  const std::vector<std::string>& paths() const { return paths_; }
  // Phases that have begun and not ended.
  int depth() const { return static_cast<int>(open_.size()); }

 private:
  std::vector<std::string> open_;  // joined paths
  std::vector<std::string> paths_;
};

// Tells each of several observers, in order; ends in the reverse order.
class TeeObserver : public PhaseObserver {
 public:
  // Null entries are left out; the others outlive this.
  explicit TeeObserver(const std::vector<PhaseObserver*>& observers);

  void Begin(absl::string_view segment) override;
  void End() override;

 private:
  std::vector<PhaseObserver*> observers_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_PHASES_H_
