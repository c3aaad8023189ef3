#include "framework/observe/phases.h"

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"

namespace tessera {

void RecordingObserver::Begin(absl::string_view segment) {
  open_.push_back(open_.empty() ? std::string(segment)
                                : absl::StrCat(open_.back(), "/", segment));
  paths_.push_back(open_.back());
}

void RecordingObserver::End() {
  TESSERA_CHECK(!open_.empty(), "a phase ends that has not begun");
  open_.pop_back();
}

TeeObserver::TeeObserver(const std::vector<PhaseObserver*>& observers) {
  for (PhaseObserver* observer : observers) {
    if (observer != nullptr) observers_.push_back(observer);
  }
}

void TeeObserver::Begin(absl::string_view segment) {
  for (PhaseObserver* observer : observers_) observer->Begin(segment);
}

void TeeObserver::End() {
  for (auto it = observers_.rbegin(); it != observers_.rend(); ++it) {
    (*it)->End();
  }
}

}  // namespace tessera
