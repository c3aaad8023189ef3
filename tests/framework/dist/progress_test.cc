#include "framework/dist/progress.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

TEST(ProgressTest, AnotherThreadReadsWhileItCounts) {
  Progress progress;
  std::thread reader([&progress] {
    for (RankProgress now; now.ended < 10'000; now = progress.Now()) {
      EXPECT_GE(now.begun, now.ended);
      EXPECT_EQ(now.begun_name.empty(), now.begun == 0);
    }
  });
  for (int64_t i = 1; i <= 10'000; ++i) {
    progress.SetStep(i);
    progress.SetHost("writes the log", i % 2 == 0);
    progress.Begin(absl::StrCat("sum ", i % 100));
    progress.End();
  }
  reader.join();
}

// Writes at once, like an idle device, or records a graph.
class FakeWriter final : public Progress::Writer {
 public:
  explicit FakeWriter(bool* recording) : recording_(*recording) {}

  int64_t* words() override { return words_.data(); }
  bool records() const override { return recording_; }
  void Write(Progress::Word first, absl::Span<const int64_t> values) override {
    if (recording_) {
      graph_.push_back({first, {values.begin(), values.end()}});
    } else {
      std::copy(values.begin(), values.end(), &words_[first]);
    }
  }
  void LaunchGraph() {
    for (const auto& [first, values] : graph_) {
      std::copy(values.begin(), values.end(), &words_[first]);
    }
  }

 private:
  const bool& recording_;
  std::vector<std::pair<Progress::Word, std::vector<int64_t>>> graph_;
  std::vector<int64_t> words_ = std::vector<int64_t>(Progress::kWords);
};

// The writer on which `progress` counts from now on.
FakeWriter& CountOnFake(bool* recording, Progress* progress) {
  auto owned = std::make_unique<FakeWriter>(recording);
  FakeWriter& writer = *owned;
  progress->CountOn(std::move(owned));
  return writer;
}

TEST(ProgressTest, AWriterCountsFromZero) {
  Progress progress;
  progress.Begin("a sum");
  bool recording = false;
  CountOnFake(&recording, &progress);
  EXPECT_EQ(progress.Now().begun, 0);
  progress.SetStep(3);
  progress.Begin("a gathering");
  progress.Begin("a sum");
  EXPECT_EQ(progress.Now().begun, 2);
  EXPECT_EQ(progress.Now().begun_name, "a sum");
  EXPECT_EQ(progress.Now().ended, 0);
  EXPECT_EQ(progress.Now().step, 3);
}

// A GPU whose driver refuses such writes.
class BrokenWriter final : public Progress::Writer {
 public:
  int64_t* words() override { return words_.data(); }
  bool records() const override { return false; }
  void Write(Progress::Word, absl::Span<const int64_t>) override {
    throw std::runtime_error("not supported");
  }

 private:
  std::vector<int64_t> words_ = std::vector<int64_t>(Progress::kWords);
};

TEST(ProgressTest, CountsOnTheHostIfTheDeviceCannot) {
  Progress progress;
  progress.Begin("a sum");
  EXPECT_THROW(progress.CountOn(std::make_unique<BrokenWriter>()),
               std::runtime_error);
  progress.SetStep(4);
  progress.Begin("a gathering");
  EXPECT_EQ(progress.Now().begun, 2);
  EXPECT_EQ(progress.Now().step, 4);
}

// The first step has no graph, the second records one.
TEST(ProgressTest, AGraphCountsInEachStepThatLaunchesIt) {
  Progress progress;
  bool recording = false;
  FakeWriter& writer = CountOnFake(&recording, &progress);
  const auto communicate = [&](const char* name) {
    progress.Begin(name);
    progress.End();
  };
  for (int64_t step = 1; step <= 5; ++step) {
    const int64_t before = 3 * (step - 1);
    progress.SetStep(step);
    EXPECT_EQ(progress.Now().begun, before);
    EXPECT_EQ(progress.Now().ended, before);
    recording = step == 2;
    if (step <= 2) {
      communicate("a sum");
      communicate("a gathering");
    }
    if (recording) {
      EXPECT_EQ(progress.Now().begun, before);
    }
    recording = false;
    if (step >= 2) writer.LaunchGraph();
    EXPECT_EQ(progress.Now().begun, before + 2);
    EXPECT_EQ(progress.Now().ended_name, "a gathering");
    communicate("after");
    EXPECT_EQ(progress.Now().ended, before + 3);
    EXPECT_EQ(progress.Now().ended_name, "after");
  }
}

TEST(ProgressTest, AGraphMayBeRecordedAgain) {
  Progress progress;
  bool recording = false;
  FakeWriter& writer = CountOnFake(&recording, &progress);
  for (int64_t step = 1; step <= 3; ++step) {
    progress.SetStep(step);
    recording = true;
    for (const char* name : {"a sum", "a gathering"}) {
      progress.Begin(name);
      progress.End();
    }
    recording = false;
    writer.LaunchGraph();
    EXPECT_EQ(progress.Now().begun, 2 * step);
    EXPECT_EQ(progress.Now().ended, 2 * step);
  }
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
