#include "framework/observe/phases.h"

#include <memory>
#include <string>
#include <vector>

#include "framework/base/phase_observer.h"
#include "framework/cuda/cuda_build.h"
#include "framework/observe/nvtx_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// The phases of a small step.
void Observe(PhaseObserver* observer) {
  PhaseScope step(observer, "step_0");
  {
    PhaseScope forward(observer, "forward");
    { PhaseScope block(observer, "block_0"); }
    { PhaseScope block(observer, "block_1"); }
  }
  PhaseScope optimizer(observer, "optimizer");
}

TEST(RecordingObserverTest, KeepsJoinedPathsInTheirOrder) {
  RecordingObserver recording;
  Observe(&recording);
  EXPECT_THAT(recording.paths(),
              ElementsAre("step_0", "step_0/forward", "step_0/forward/block_0",
                          "step_0/forward/block_1", "step_0/optimizer"));
  EXPECT_EQ(recording.depth(), 0);
}

TEST(RecordingObserverTest, KnowsWhatIsOpen) {
  RecordingObserver recording;
  recording.Begin("a");
  recording.Begin("b");
  EXPECT_EQ(recording.depth(), 2);
}

TEST(RecordingObserverDeathTest, DiesOnAnEndWithoutABegin) {
  RecordingObserver recording;
  EXPECT_DEATH(recording.End(), "has not begun");
}

// Notes into a list that several observers share.
class NotingObserver : public PhaseObserver {
 public:
  NotingObserver(std::string name, std::vector<std::string>* notes)
      : name_(std::move(name)), notes_(notes) {}
  void Begin(absl::string_view segment) override {
    notes_->push_back(name_ + " begins " + std::string(segment));
  }
  void End() override { notes_->push_back(name_ + " ends"); }

 private:
  const std::string name_;
  std::vector<std::string>* const notes_;
};

TEST(TeeObserverTest, EndsInTheReverseOrderAndLeavesOutNull) {
  std::vector<std::string> notes;
  NotingObserver a("a", &notes);
  NotingObserver b("b", &notes);
  TeeObserver tee({&a, nullptr, &b});
  { PhaseScope scope(&tee, "x"); }
  EXPECT_THAT(notes,
              ElementsAre("a begins x", "b begins x", "b ends", "a ends"));
}

TEST(NvtxObserverTest, DoesNothingWithoutAProfiler) {
  if constexpr (kCudaBuild) {
    Observe(CreateNvtxObserver().get());
  } else {
    GTEST_SKIP() << "built without CUDA";
  }
}

}  // namespace
}  // namespace tessera
