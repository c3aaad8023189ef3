#include "tests/testing/recording_observer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(RecordingObserverTest, KeepsJoinedPathsInOrder) {
  RecordingObserver recording;
  {
    StepScope step(&recording, 0);
    {
      PhaseScope forward(&recording, "forward");
      { PhaseScope block(&recording, "block_0"); }
      { PhaseScope block(&recording, "block_1"); }
    }
    PhaseScope optimizer(&recording, "optimizer");
  }
  EXPECT_THAT(
      recording.paths(),
      testing::ElementsAre("step_0", "step_0/forward", "step_0/forward/block_0",
                           "step_0/forward/block_1", "step_0/optimizer"));
  EXPECT_EQ(recording.depth(), 0);
}

TEST(RecordingObserverTest, KnowsTheOpenPhases) {
  RecordingObserver recording;
  recording.Begin("a");
  recording.Begin("b");
  EXPECT_EQ(recording.depth(), 2);
}

TEST(RecordingObserverDeathTest, DiesOnAnEndWithoutABegin) {
  RecordingObserver recording;
  EXPECT_DEATH(recording.End(), "has not begun");
}

}  // namespace
}  // namespace tessera
