#ifndef TESTS_TESTING_RECORDING_OBSERVER_H_
#define TESTS_TESTING_RECORDING_OBSERVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "framework/base/phase_observer.h"

namespace tessera {

// Records the joined path of every step, phase and op, in the order in which
// they begin: "step_7/forward/block_3/attention/qkv".
class RecordingObserver : public PhaseObserver {
 public:
  void BeginStep(int64_t step) noexcept override;
  void EndStep() noexcept override { End(); }
  void Begin(absl::string_view segment) noexcept override;
  void End() noexcept override;
  void BeginOp(absl::string_view name, OpResults) noexcept override {
    Begin(name);
  }
  void EndOp() noexcept override { End(); }

  const std::vector<std::string>& paths() const { return paths_; }
  // Number of phases that have begun but not ended.
  int depth() const { return static_cast<int>(open_.size()); }

 private:
  std::vector<std::string> open_;  // joined paths
  std::vector<std::string> paths_;
};

}  // namespace tessera

#endif  // TESTS_TESTING_RECORDING_OBSERVER_H_
