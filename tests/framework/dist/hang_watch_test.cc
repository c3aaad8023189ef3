#include "framework/dist/hang_watch.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/dist/memory_store.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr HangLimits kLimits = {.first = absl::Seconds(600),
                                .least = absl::Seconds(60)};

class HangClockTest : public testing::Test {
 protected:
  // The number of polls, each after a second, until the wait in the next
  // communication is too long.
  int PollsUntilHang() {
    ++progress_.begun;
    for (int polls = 0; polls < 10'000; ++polls) {
      if (clock_.Poll(progress_)) return polls;
    }
    return -1;
  }
  // A step of one communication.
  void Step(int seconds) {
    ++progress_.step;
    progress_.begun = ++progress_.ended;
    for (int i = 0; i < seconds; ++i) EXPECT_FALSE(clock_.Poll(progress_));
  }

  RankProgress progress_;
  HangClock clock_{kLimits, absl::Seconds(1)};
};

TEST_F(HangClockTest, TheFirstStepHasItsOwnLimit) {
  progress_.step = 1;
  EXPECT_EQ(PollsUntilHang(), 600);
  EXPECT_TRUE(clock_.Poll(progress_));
  clock_.Restart();
  EXPECT_FALSE(clock_.Poll(progress_));
}

TEST_F(HangClockTest, AStepHasTenTimesTheMedianAndAtLeastAMinute) {
  for (int i = 0; i < 5; ++i) Step(2);
  EXPECT_EQ(PollsUntilHang(), 60);
  for (int i = 0; i < 40; ++i) Step(i % 5 == 0 ? 300 : 20);
  EXPECT_EQ(clock_.limit(), absl::Seconds(200));
  EXPECT_EQ(PollsUntilHang(), 200);
}

TEST_F(HangClockTest, ManyStepsBetweenTwoPolls) {
  for (int i = 0; i < 5; ++i) {
    progress_.step += 100;
    EXPECT_FALSE(clock_.Poll(progress_));
  }
  EXPECT_EQ(clock_.limit(), absl::Seconds(60));
}

// A step takes half a second; polls are five seconds apart.
TEST_F(HangClockTest, StepsBetweenTwoPollsShareTheTime) {
  HangClock clock({.first = absl::Seconds(600), .least = absl::Seconds(1)},
                  absl::Seconds(5));
  for (int i = 0; i < 5; ++i) {
    progress_.step += 10;
    EXPECT_FALSE(clock.Poll(progress_));
  }
  EXPECT_EQ(clock.limit(), absl::Seconds(5));
}

// A rank that prepares data or writes is in no communication.
TEST_F(HangClockTest, DoesNotRunOutsideOfCommunications) {
  Step(1);
  Step(1);
  for (int i = 0; i < 5'000; ++i) EXPECT_FALSE(clock_.Poll(progress_));
}

TEST_F(HangClockTest, SlowCommunicationsAreNotAHang) {
  Step(1);
  Step(1);
  for (int i = 0; i < 20; ++i) {
    ++progress_.begun;
    for (int j = 0; j < 59; ++j) EXPECT_FALSE(clock_.Poll(progress_));
    ++progress_.ended;
  }
}

// Rank 1 has ended operation 1, ranks 0 and 2 wait in operation 2.
std::vector<RankProgress> RankOneIsMissing() {
  const RankProgress waits = {.begun = 8,
                              .ended = 7,
                              .begun_name = "operation 2 of 2",
                              .ended_name = "operation 1 of 2",
                              .step = 4};
  RankProgress missing = waits;
  missing.begun = 7;
  missing.begun_name = missing.ended_name;
  missing.process = "process 4711 on gpu01";
  return {waits, missing, waits};
}

TEST(DescribeHangTest, NamesTheMissingRank) {
  const std::vector<RankProgress> ranks = RankOneIsMissing();
  EXPECT_THAT(MissingRanks(ranks), ElementsAre(1));
  const std::string text = DescribeHang(ranks, absl::Seconds(60));
  EXPECT_EQ(text,
            "no communication has made progress for 1m: rank 1 (process 4711 "
            "on gpu01) is missing in 'operation 2 of 2' of step 4. Ranks 0, 2 "
            "wait there. Rank 1 (process 4711 on gpu01) has ended 'operation "
            "1 of 2' in step 4 and begun none since.");
  EXPECT_TRUE(IsHang(text));
  EXPECT_FALSE(IsHang("rank 1 has given no sign of life"));
}

TEST(DescribeHangTest, NamesRanksInDifferentOperations) {
  std::vector<RankProgress> ranks = RankOneIsMissing();
  ranks[1] = ranks[0];
  ranks[1].begun_name = "operation 1 of 2";
  ranks[1].step = 5;
  EXPECT_THAT(MissingRanks(ranks), IsEmpty());
  EXPECT_THAT(DescribeHang(ranks, absl::Seconds(60)),
              HasSubstr(": the ranks are in different operations. Ranks 0, 2 "
                        "have begun 'operation 2 of 2' of step 4 and not "
                        "ended it. Rank 1 has begun 'operation 1 of 2' of "
                        "step 5 and not ended it."));
}

TEST(DescribeHangTest, ManyPlacesStayOneParagraph) {
  std::vector<RankProgress> ranks(1'000);
  for (int i = 0; i < 1'000; ++i) ranks[i].begun = i;
  const std::string text = DescribeHang(ranks, absl::Seconds(60));
  EXPECT_LT(text.size(), 1'000u);
  EXPECT_THAT(text, HasSubstr("996 more ranks or groups of ranks"));
}

TEST(DescribeHangTest, AllRanksInOneOperation) {
  std::vector<RankProgress> ranks = RankOneIsMissing();
  ranks[1] = ranks[0];
  EXPECT_THAT(DescribeHang(ranks, absl::Seconds(60)),
              HasSubstr(": all ranks are in 'operation 2 of 2' of step 4, so "
                        "a GPU or the network between them hangs"));
}

// Rank 0 of two, which waits in its first sum.
class HangWatchTest : public testing::Test {
 protected:
  HangWatchTest() { progress_.Begin("the sum"); }

  // The number of polls until the run must end.
  std::optional<int> PollsUntilEnd() {
    for (int polls = 0; polls < 100; ++polls) {
      if (watch_.Poll(store_).value().has_value()) return polls;
    }
    return std::nullopt;
  }

  MemoryStore store_;
  Progress progress_;
  HangWatch watch_{&progress_,
                   0,
                   2,
                   {.first = absl::Seconds(10), .least = absl::Seconds(5)},
                   absl::Seconds(1)};
};

TEST_F(HangWatchTest, ARankThatHasSentNothingIsMissing) {
  EXPECT_EQ(PollsUntilEnd(), 10);
}

TEST_F(HangWatchTest, AnExcusedRankIsWaitedFor) {
  ASSERT_TRUE(
      store_
          .Set("progress/1",
               PrintProgress({.host = "writes a checkpoint", .excused = true}))
          .ok());
  testing::internal::CaptureStderr();
  EXPECT_EQ(PollsUntilEnd(), std::nullopt);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("rank 0 of 2 has waited 10s in 'the sum' of step 0 for "
                        "rank 1, which writes a checkpoint"));
  ASSERT_TRUE(store_.Set("progress/1", PrintProgress({})).ok());
  EXPECT_TRUE(PollsUntilEnd().has_value());
}

// Its communication has failed, and it writes a last checkpoint.
TEST_F(HangWatchTest, AnExcusedRankDoesNotEndTheRun) {
  progress_.SetHost("writes a checkpoint", /*excused=*/true);
  EXPECT_EQ(PollsUntilEnd(), std::nullopt);
  progress_.SetHost("", /*excused=*/false);
  EXPECT_EQ(PollsUntilEnd(), 0);
}

TEST_F(HangWatchTest, OneRankReadsAtATime) {
  ASSERT_TRUE(store_.Add("progress/readers", 1).ok());
  EXPECT_EQ(PollsUntilEnd(), std::nullopt);
  ASSERT_TRUE(store_.Add("progress/readers", -1).ok());
  EXPECT_EQ(PollsUntilEnd(), 0);
}

TEST_F(HangWatchTest, ReportsIntoTheFolder) {
  EXPECT_EQ(watch_.WriteReport("why"), "");
  const std::string folder = absl::StrCat(testing::TempDir(), "/reports/new");
  watch_.SetFolder(folder);
  const std::string path = folder + "/hang_rank_0.json";
  EXPECT_EQ(watch_.WriteReport("why"),
            absl::StrCat(" This rank's progress is in ", path, "."));
  const nlohmann::json json = ParseJson(ReadFile(path).value());
  EXPECT_EQ(json["why"], "why");
  EXPECT_EQ(json["begun_name"], "the sum");
  watch_.SetFolder("/proc/none");
  EXPECT_THAT(watch_.WriteReport("why"), HasSubstr(" cannot "));
}

}  // namespace
}  // namespace tessera
