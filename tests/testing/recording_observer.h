#ifndef TESTS_TESTING_RECORDING_OBSERVER_H_
#define TESTS_TESTING_RECORDING_OBSERVER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "framework/base/phase_observer.h"

namespace tessera {

// Records the joined path of every phase, in the order in which phases begin:
// "step_7/forward/block_3".
class RecordingObserver : public PhaseObserver {
 public:
  void Begin(absl::string_view segment) override;
  void End() override;

  const std::vector<std::string>& paths() const { return paths_; }
  // Number of phases that have begun but not ended.
  int depth() const { return static_cast<int>(open_.size()); }

 private:
  std::vector<std::string> open_;  // joined paths
  std::vector<std::string> paths_;
};

}  // namespace tessera

#endif  // TESTS_TESTING_RECORDING_OBSERVER_H_
