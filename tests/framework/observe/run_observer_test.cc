#include "framework/observe/run_observer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// Appends notes of steps to a list that several observers share.
class Noting : public RunObserver {
 public:
  Noting(std::string name, std::vector<std::string>* notes,
         absl::Status answer = absl::OkStatus())
      : name_(std::move(name)), notes_(notes), answer_(std::move(answer)) {}
  absl::Status OnStepEnd(int64_t step) override {
    notes_->push_back(absl::StrCat(name_, " ", step));
    return answer_;
  }

 private:
  const std::string name_;
  std::vector<std::string>* const notes_;
  const absl::Status answer_;
};

TEST(RunObserverTest, EachReceivesEventsInOrder) {
  std::vector<std::string> notes;
  Noting a("a", &notes), b("b", &notes);
  EXPECT_TRUE(Notify({&a, &b}, &RunObserver::OnStepEnd, 7).ok());
  EXPECT_THAT(notes, ElementsAre("a 7", "b 7"));
}

TEST(RunObserverTest, AnErrorStopsTheNotificationAndIsReturned) {
  std::vector<std::string> notes;
  const absl::Status full = absl::FailedPreconditionError("disk full");
  Noting a("a", &notes), b("b", &notes, full), c("c", &notes);
  EXPECT_EQ(Notify({&a, &b, &c}, &RunObserver::OnStepEnd, 7), full);
  EXPECT_THAT(notes, ElementsAre("a 7", "b 7"));
}

TEST(RunObserverTest, EventsThatAreNotOverriddenAreIgnored) {
  std::vector<std::string> notes;
  Noting a("a", &notes);
  EXPECT_TRUE(Notify({&a}, &RunObserver::OnStepLogged, StepRecord{}).ok());
  EXPECT_THAT(notes, ElementsAre());
}

}  // namespace
}  // namespace tessera
