#include "framework/dist/progress.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ProgressTest, CountsAndNamesWhatHasBegunAndEnded) {
  Progress progress;
  EXPECT_EQ(progress.Now().begun, 0);
  EXPECT_EQ(progress.Now().begun_name, "");
  for (int64_t step = 1; step <= 3; ++step) {
    progress.SetStep(step);
    for (const char* name : {"a sum", "a gathering"}) {
      progress.Begin(name);
      EXPECT_EQ(progress.Now().begun_name, name);
      EXPECT_EQ(progress.Now().begun, progress.Now().ended + 1);
      progress.End();
      EXPECT_EQ(progress.Now().ended_name, name);
    }
    EXPECT_EQ(progress.Now().step, step);
    EXPECT_EQ(progress.Now().begun, 2 * step);
    EXPECT_EQ(progress.Now().ended, 2 * step);
  }
}

TEST(ProgressTest, CountsOnWhenThereAreTooManyNames) {
  Progress progress;
  constexpr int64_t kMany = 70'000;
  for (int64_t i = 0; i < kMany; ++i) progress.Begin(absl::StrCat("sum ", i));
  EXPECT_EQ(progress.Now().begun, kMany);
  EXPECT_EQ(progress.Now().begun_name, "a communication");
  progress.Begin("sum 7");
  EXPECT_EQ(progress.Now().begun_name, "sum 7");
}

TEST(ProgressTest, KnowsWhatTheHostDoes) {
  Progress progress;
  EXPECT_EQ(progress.SetHost("writes the log", true), "");
  EXPECT_TRUE(progress.Now().excused);
  EXPECT_EQ(progress.SetHost("", false), "writes the log");
  EXPECT_FALSE(progress.Now().excused);
}

TEST(ProgressTest, IsReadAsItWasPrinted) {
  const RankProgress progress = {.begun = 1'234,
                                 .ended = 1'233,
                                 .begun_name = "a \"sum\"",
                                 .ended_name = "a gathering",
                                 .step = 7,
                                 .host = "writes the log",
                                 .excused = true,
                                 .process = "process 4711 on gpu01"};
  EXPECT_EQ(ParseProgress(PrintProgress(progress)), progress);
  EXPECT_EQ(ParseProgress("rubbish"), RankProgress());
  EXPECT_EQ(ParseProgress("[1]"), RankProgress());
  EXPECT_EQ(ParseProgress(R"({"begun": "many", "step": 3})"),
            RankProgress{.step = 3});
}

}  // namespace
}  // namespace tessera
