#include "framework/optim/optimizer_config.h"

#include <google/protobuf/text_format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "framework/base/text_proto.h"
#include "framework/base/violations.h"
#include "framework/optim/learning_rate_schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message))
      << text;
  return message;
}

std::vector<Violation> ViolationsOf(const std::string& text) {
  std::vector<Violation> found;
  Validate(Parse<OptimizerConfig>(text), Violations(&found));
  return found;
}

struct BadConfig {
  const char* text;
  const char* path;
};

class OptimizerConfigValidation : public ::testing::TestWithParam<BadConfig> {};

TEST_P(OptimizerConfigValidation, NamesTheBrokenRule) {
  const std::vector<Violation> found = ViolationsOf(GetParam().text);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].path, GetParam().path);
}

INSTANTIATE_TEST_SUITE_P(
    , OptimizerConfigValidation,
    ::testing::Values(
        BadConfig{"", "algorithm"}, BadConfig{"adamw {}", "adamw.lr"},
        BadConfig{"adamw { lr: 0 }", "adamw.lr"},
        BadConfig{"adamw { lr: nan }", "adamw.lr"},
        BadConfig{"adamw { lr: inf }", "adamw.lr"},
        BadConfig{"adamw { lr: 1e39 }", "adamw.lr"},
        BadConfig{"adamw { lr: 1 beta1: 1 }", "adamw.beta1"},
        BadConfig{"adamw { lr: 1 beta2: -0.1 }", "adamw.beta2"},
        BadConfig{"adamw { lr: 1 eps: 0 }", "adamw.eps"},
        BadConfig{"adamw { lr: 1 eps: 1e-50 }", "adamw.eps"},
        BadConfig{"adamw { lr: 1 weight_decay: -1 }", "adamw.weight_decay"},
        BadConfig{"adamw { lr: 1 weight_decay: 1e39 }", "adamw.weight_decay"},
        BadConfig{"adamw { lr: 1 groups { patterns: '*' } }",
                  "adamw.groups[0].name"},
        BadConfig{"adamw { lr: 1 groups { name: 'all' } }",
                  "adamw.groups[0].patterns"},
        BadConfig{"adamw { lr: 1 groups { name: 'all' patterns: '*' "
                  "weight_decay: -1 } }",
                  "adamw.groups[0].weight_decay"},
        BadConfig{"adamw { lr: 1 groups { name: 'all' patterns: '*' "
                  "lr_multiplier: inf } }",
                  "adamw.groups[0].lr_multiplier"},
        BadConfig{"adamw { lr: 1 groups { name: 'all' patterns: '*' "
                  "lr_multiplier: 1e60 } }",
                  "adamw.groups[0].lr_multiplier"},
        BadConfig{"adamw { lr: 1 groups { name: 'a' patterns: 'x' } "
                  "groups { name: 'a' patterns: 'y' } }",
                  "adamw.groups[1].name"},
        BadConfig{"adamw { lr: 1 } clip_norm: 0", "clip_norm"},
        BadConfig{"adamw { lr: 1 } clip_norm: 1e39", "clip_norm"},
        BadConfig{"adamw { lr: 1 } schedule { warmup_steps: -1 }",
                  "schedule.warmup_steps"},
        BadConfig{"adamw { lr: 1 } schedule { warmup_ratio: -1e-320 }",
                  "schedule.warmup_ratio"},
        BadConfig{"adamw { lr: 1 } schedule { warmup_ratio: 1 }",
                  "schedule.warmup_ratio"},
        BadConfig{"adamw { lr: 1 } schedule { warmup_ratio: nan }",
                  "schedule.warmup_ratio"},
        BadConfig{"adamw { lr: 1 } schedule { cosine { decay_steps: 0 } }",
                  "schedule.cosine.decay_steps"},
        BadConfig{"adamw { lr: 1 } schedule { cosine { final_ratio: 2 } }",
                  "schedule.cosine.final_ratio"},
        BadConfig{"adamw { lr: 1 } schedule { linear { final_ratio: -1 } }",
                  "schedule.linear.final_ratio"},
        BadConfig{"adamw { lr: 1 } schedule { wsd {} }",
                  "schedule.wsd.decay_steps"},
        BadConfig{"adamw { lr: 1 } schedule { wsd { decay_steps: 1 "
                  "decay: UNSPECIFIED } }",
                  "schedule.wsd.decay"},
        BadConfig{"adamw { lr: 1 } muon { lr: 0 }", "muon.lr"},
        BadConfig{"adamw { lr: 1 } muon { lr: inf }", "muon.lr"},
        BadConfig{"adamw { lr: 1e-37 } muon { lr: 100 }", "muon.lr"},
        BadConfig{"adamw { lr: 100 } muon { lr: 1e-37 }", "muon.lr"},
        BadConfig{"adamw { lr: 1 } muon { momentum: 1 }", "muon.momentum"},
        BadConfig{"adamw { lr: 1 } muon { normuon_beta2: 1 }",
                  "muon.normuon_beta2"},
        BadConfig{"adamw { lr: 1 } muon { ns_steps: 0 }", "muon.ns_steps"},
        BadConfig{"adamw { lr: 1 } muon { ns_steps: 21 }", "muon.ns_steps"},
        BadConfig{"adamw { lr: 1 } muon { adjust_lr: UNSPECIFIED }",
                  "muon.adjust_lr"},
        BadConfig{"adamw { lr: 1 } ema { decay: 1 }", "ema.decay"},
        BadConfig{"adamw { lr: 1 } ema { decay: -0.1 }", "ema.decay"},
        BadConfig{"adamw { lr: 1 } ema { decay: nan }", "ema.decay"}));

TEST(OptimizerConfig, ExplainsTheRatioOfRates) {
  EXPECT_EQ(ViolationsOf("adamw { lr: 1e-37 } muon { lr: 100 }")[0].message,
            "is 100, whose ratio to adamw.lr, 1e-37, must be in the range of "
            "FP32, 1.17549e-38 to 3.40282e+38; is 1e+39");
}

TEST(OptimizerConfig, DefaultsAreValidWithARate) {
  EXPECT_TRUE(ViolationsOf("adamw { lr: 1e-3 }").empty());
}

// A run folder keeps a config with all defaults written out.
TEST(OptimizerConfig, AConfigWithItsDefaultsChoosesTheSameOptimizer) {
  const auto kept = [](const std::string& text) {
    return MuonPatternsOf(Parse<OptimizerConfig>(
        PrintWithDefaults(Parse<OptimizerConfig>(text))));
  };
  EXPECT_TRUE(kept("adamw { lr: 1 }").empty());
  EXPECT_EQ(kept("adamw { lr: 1 } muon {}"),
            std::vector<std::string>{"layers.*"});
  const OptimizerConfig muon = Parse<OptimizerConfig>(
      PrintWithDefaults(Parse<OptimizerConfig>("adamw { lr: 1 } muon {}")));
  EXPECT_FALSE(MuonOptionsOf(muon).normalizes_rows);
  EXPECT_FALSE(muon.has_ema());
}

TEST(OptimizerConfig, AllowsAtMostSixteenGroups) {
  std::string groups;
  for (char name = 'a'; name < 'a' + 16; ++name) {
    groups += std::string("groups { patterns: '*' name: '") + name + "' } ";
  }
  EXPECT_TRUE(ViolationsOf("adamw { lr: 1 " + groups + "}").empty());
  groups += "groups { patterns: '*' name: 'z' }";
  const auto found = ViolationsOf("adamw { lr: 1 " + groups + "}");
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].message, "must have at most 16 entries; has 17");
}

TEST(OptimizerConfig, NamesTheRangeOfFp32) {
  const auto found = ViolationsOf("adamw { lr: 1e39 } clip_norm: nan");
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(
      found[0].message,
      "must be in the range of FP32, 1.17549e-38 to 3.40282e+38; is 1e+39");
  EXPECT_EQ(found[1].message, "must be > 0, or absent for no clipping; is nan");
}

TEST(OptimizerConfig, ReportsEveryBrokenRuleAtOnce) {
  EXPECT_EQ(ViolationsOf("adamw { lr: -1 beta1: 2 } clip_norm: -1").size(), 3);
}

LearningRateSchedule MakeSchedule(const std::string& text,
                                  int64_t total_steps) {
  return LearningRateScheduleOf(Parse<ScheduleConfig>(text), /*peak_lr=*/2,
                                total_steps);
}

// Rates as fractions of the peak.
struct Point {
  int64_t step;
  double ratio;
};
struct ScheduleCase {
  const char* text;
  int64_t total_steps;
  std::vector<Point> points;
};

class ScheduleShape : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(ScheduleShape, HasTheExpectedValues) {
  const LearningRateSchedule schedule =
      MakeSchedule(GetParam().text, GetParam().total_steps);
  for (const Point& point : GetParam().points) {
    EXPECT_NEAR(schedule.LearningRate(point.step), 2 * point.ratio, 1e-14)
        << GetParam().text << ", step " << point.step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , ScheduleShape,
    ::testing::Values(
        ScheduleCase{"", 10, {{0, 1}, {9, 1}, {1000, 1}}},
        ScheduleCase{"constant {} warmup_steps: 4",
                     10,
                     {{0, 0.2}, {1, 0.4}, {3, 0.8}, {4, 1}, {9, 1}}},
        // Ten steps after the warm-up: the decay ends with the training.
        ScheduleCase{"warmup_steps: 3 cosine { final_ratio: 0.1 }",
                     13,
                     {{0, 0.25},
                      {2, 0.75},
                      {3, 1},
                      {8, 0.55},
                      {12, 0.1 + 0.45 * (1 + std::cos(0.9 * M_PI))},
                      {13, 0.1},
                      {50, 0.1}}},
        ScheduleCase{"cosine { decay_steps: 4 final_ratio: 0 }",
                     10,
                     {{0, 1}, {2, 0.5}, {4, 0}, {9, 0}}},
        ScheduleCase{"warmup_steps: 1 linear {}",
                     11,
                     {{0, 0.5}, {1, 1}, {6, 0.5}, {10, 0.1}, {11, 0}}},
        ScheduleCase{"linear { decay_steps: 5 final_ratio: 0.5 }",
                     10,
                     {{0, 1}, {1, 0.9}, {5, 0.5}, {9, 0.5}}},
        ScheduleCase{"warmup_steps: 1 wsd { decay_steps: 4 }",
                     10,
                     {{0, 0.5}, {1, 1}, {5, 1}, {6, 1}, {7, 0.75}, {9, 0.25}}},
        ScheduleCase{"wsd { decay_steps: 4 final_ratio: 0.2 decay: SQRT }",
                     10,
                     {{0, 1}, {6, 1}, {7, 1 - 0.8 * 0.5}, {10, 0.2}}}));

TEST(Schedule, IsContinuousAtThePeak) {
  const LearningRateSchedule schedule =
      MakeSchedule("warmup_steps: 1000 cosine {}", 5000);
  EXPECT_NEAR(schedule.LearningRate(999), schedule.LearningRate(1000), 0.003);
  EXPECT_EQ(schedule.LearningRate(1000), 2);
  EXPECT_LT(schedule.LearningRate(1001), 2);
}

TEST(Schedule, WarmupRatioIsRoundedAndLeavesAStep) {
  const auto steps = [](double ratio, int64_t total_steps) {
    ScheduleConfig config;
    config.set_warmup_ratio(ratio);
    return WarmupSteps(config, total_steps);
  };
  EXPECT_EQ(steps(0, 1000), 0);
  EXPECT_EQ(steps(0.125, 400), 50);
  EXPECT_EQ(steps(0.29, 100), 29);  // 28.999999999999996 in FP64
  EXPECT_EQ(steps(0.25, 10), 3);
  EXPECT_EQ(steps(0.1, 4), 0);
  EXPECT_EQ(steps(0.999, 1), 0);
  EXPECT_EQ(steps(0.999, 3), 2);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_LT(steps(std::nextafter(1.0, 0.0), kMost), kMost);
}

TEST(Schedule, WarmupRatioGivesTheSameRatesAsItsSteps) {
  const LearningRateSchedule ratio =
      MakeSchedule("warmup_ratio: 0.125 cosine {}", 400);
  const LearningRateSchedule steps =
      MakeSchedule("warmup_steps: 50 cosine {}", 400);
  for (int64_t t = 0; t < 400; ++t) {
    ASSERT_EQ(ratio.LearningRate(t), steps.LearningRate(t)) << t;
  }
}

}  // namespace
}  // namespace tessera
