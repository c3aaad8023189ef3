#include "tests/testing/recording_observer.h"

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"

namespace tessera {

void RecordingObserver::BeginStep(int64_t step) noexcept {
  Begin(absl::StrCat("step_", step));
}

void RecordingObserver::Begin(absl::string_view segment) noexcept {
  open_.push_back(open_.empty() ? std::string(segment)
                                : absl::StrCat(open_.back(), "/", segment));
  paths_.push_back(open_.back());
}

void RecordingObserver::End() noexcept {
  TESSERA_CHECK(!open_.empty(), "a phase ends that has not begun");
  open_.pop_back();
}

}  // namespace tessera
