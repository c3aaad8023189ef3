#include "trainers/plan/what_fits.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device_spec.h"
#include "framework/program/printer.h"
#include "gtest/gtest.h"
#include "trainers/config/config_loader.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

RunConfig Config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"training.batch_size=4"};
  sets.insert(sets.end(), more.begin(), more.end());
  return LoadRunConfig({"configs/small.pbtxt", "configs/precision/bf16.pbtxt"},
                       sets)
      .value();
}

DeviceInfo Gpu(const std::string& name) {
  return DeviceToPlanFor(name).value();
}

// Searches below `limit` with every capacity from `bytes(1) - 1` on; returns
// the most calls that a search took.
int64_t CheckSearch(const std::function<int64_t(int64_t)>& bytes,
                    int64_t limit) {
  int64_t most_calls = 0;
  for (int64_t answer : {0, 1, 2, 3, 7, 100, 999, 1000}) {
    answer = std::min(answer, limit);
    for (const int64_t capacity : {bytes(answer + 1) - 1, bytes(answer)}) {
      if (answer == 0 && capacity >= bytes(1)) continue;
      int64_t calls = 0;
      EXPECT_EQ(LargestThatFits(
                    [&](int64_t n) -> std::optional<int64_t> {
                      EXPECT_GE(n, 1);
                      EXPECT_LE(n, limit);
                      ++calls;
                      return bytes(n);
                    },
                    capacity, limit),
                answer);
      most_calls = std::max(most_calls, calls);
    }
  }
  return most_calls;
}

TEST(LargestThatFitsTest, FindsTheLastThatFits) {
  EXPECT_LE(CheckSearch([](int64_t n) { return 5000 + 70 * n; }, 1000), 7);
  EXPECT_LE(
      CheckSearch([](int64_t n) { return 5000 + 7 * n + 3 * n * n; }, 100'000),
      20);
  // Almost flat, then steep.
  EXPECT_LE(CheckSearch([](int64_t n) { return n + n * n * n * n; }, 2000), 40);
}

TEST(LargestThatFitsTest, NothingLargerRunsAtAll) {
  const auto bytes = [](int64_t n) -> std::optional<int64_t> {
    if (n > 37) return std::nullopt;
    return n;
  };
  EXPECT_EQ(LargestThatFits(bytes, 1000, 500), 37);
  EXPECT_EQ(LargestThatFits(bytes, 10, 500), 10);
  EXPECT_EQ(LargestThatFits(bytes, 1000, 20), 20);
  EXPECT_EQ(LargestThatFits(bytes, 1000, 1), 1);
  EXPECT_EQ(LargestThatFits(bytes, 0, 500), 0);
}

// True if the run fits with the field at `value`.
bool Fits(const std::string& field, int64_t value, const DeviceInfo& device,
          const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = more;
  sets.push_back(absl::StrCat(field, "=", value));
  return PlanRun(Config(sets), {}, device).ok();
}

TEST(WhatFitsTest, OneMoreDoesNotFit) {
  const DeviceInfo device = Gpu("4090");
  const std::vector<std::string> two = {"training.micro_batches=2"};
  const RunPlan plan = PlanRun(Config(two), {}, device).value();
  const WhatFits fits = FindWhatFits(plan);
  struct Case {
    const LargestValue& value;
    int64_t unit;
  };
  for (const Case& c :
       {Case{fits.batch, 2}, Case{fits.context, 128}, Case{fits.layers, 1}}) {
    SCOPED_TRACE(c.value.field);
    EXPECT_GT(c.value.largest, c.value.now);
    EXPECT_FALSE(c.value.at_limit);
    EXPECT_EQ(c.value.largest % c.unit, 0);
    EXPECT_TRUE(Fits(c.value.field, c.value.largest, device, two));
    EXPECT_FALSE(Fits(c.value.field, c.value.largest + c.unit, device, two));
  }
  EXPECT_GT(fits.parameters_of_layers, plan.num_parameters);
}

TEST(WhatFitsTest, TheBatchIsAMultipleOfRanksAndMicroBatches) {
  WorldInfo world;
  world.world_size = world.local_world_size = 3;
  const auto plan = [&](int64_t batch) {
    return PlanRun(Config({"training.micro_batches=2", "model.num_layers=2",
                           absl::StrCat("training.batch_size=", batch)}),
                   world, Gpu("4090"));
  };
  const int64_t largest = FindWhatFits(plan(6).value()).batch.largest;
  EXPECT_GT(largest, 6);
  EXPECT_EQ(largest % 6, 0);
  EXPECT_TRUE(plan(largest).ok());
  EXPECT_EQ(plan(largest + 6).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Fewer layers than that cannot run, but more can.
TEST(WhatFitsTest, APatternMayNameALayer) {
  const auto layers = [](const std::vector<std::string>& sets) {
    return FindWhatFits(PlanRun(Config(sets), {}, Gpu("4090")).value()).layers;
  };
  const LargestValue any = layers({"model.num_layers=3"});
  const LargestValue named =
      layers({"model.num_layers=3", "model.frozen=[layers.2.*]"});
  EXPECT_GT(any.largest, 3);
  EXPECT_GE(named.largest, any.largest);
}

TEST(WhatFitsTest, TradesTimeForMemory) {
  const WhatFits fits = FindWhatFits(
      PlanRun(
          Config({"model.context_length=2048", "training.deterministic=false"}),
          {}, Gpu("H200"))
          .value());
  ASSERT_EQ(fits.recompute.size(), 4u);
  const Alternative& none = fits.recompute.front();
  const Alternative& block = fits.recompute.back();
  EXPECT_TRUE(none.current);
  EXPECT_EQ(none.value, "NONE");
  EXPECT_EQ(none.largest_batch.largest, fits.batch.largest);
  EXPECT_EQ(block.value, "BLOCK");
  EXPECT_LT(block.bytes, none.bytes);
  EXPECT_GT(block.largest_batch.largest, 2 * none.largest_batch.largest);
  // About a third more than forward and backward.
  EXPECT_NEAR(block.step_flops / none.step_flops, 4.0 / 3, 0.1);
  EXPECT_GT(block.step_seconds.value(), none.step_seconds.value());

  int current = 0;
  const Alternative* naive = nullptr;
  for (const Alternative& backend : fits.backends) {
    current += backend.current ? 1 : 0;
    if (backend.value == "NAIVE") naive = &backend;
    if (backend.current) {
      EXPECT_EQ(backend.bytes, none.bytes);
      EXPECT_EQ(backend.step_seconds, none.step_seconds);
    }
  }
  EXPECT_EQ(current, 1);
  ASSERT_NE(naive, nullptr);
  EXPECT_GT(naive->bytes, none.bytes);
  EXPECT_LT(naive->largest_batch.largest, none.largest_batch.largest);
}

// The trade-offs count what --print_step lists.
TEST(WhatFitsTest, CountsEveryMicroBatch) {
  std::vector<double> flops, seconds;
  for (const int micro_batches : {1, 4}) {
    const RunPlan plan =
        PlanRun(Config({absl::StrCat("training.micro_batches=", micro_batches),
                        "model.num_layers=2", "model.context_length=128"}),
                {}, Gpu("H200"))
            .value();
    double printed_flops = 0, printed_us = 0;
    for (const auto& row : StepToJson(FoldBlocks(RowsOfStep(plan)))) {
      const double count = row["count"];
      printed_flops += count * row["flops"].get<double>();
      printed_us += count * row["roofline_us"].get<double>();
    }
    const Alternative none = FindWhatFits(plan).recompute.front();
    EXPECT_DOUBLE_EQ(none.step_flops, printed_flops);
    EXPECT_NEAR(*none.step_seconds, printed_us * 1e-6, 1e-9 * printed_us);
    EXPECT_GT(none.step_flops, plan.flops_per_token * plan.tokens_per_step());
    flops.push_back(none.step_flops);
    seconds.push_back(*none.step_seconds);
  }
  // The same tokens, whose gradients are added up.
  EXPECT_NEAR(flops[1] / flops[0], 1, 0.01);
  EXPECT_GT(seconds[1], seconds[0]);
}

TEST(WhatFitsTest, AnswersForARunThatDoesNotFit) {
  const RunPlan plan =
      PlanWithoutFit(Config({"training.batch_size=4000"}), {}, Gpu("L4"))
          .value();
  EXPECT_EQ(CheckFits(plan).code(), absl::StatusCode::kResourceExhausted);
  const WhatFits fits = FindWhatFits(plan);
  EXPECT_GT(fits.batch.largest, 0);
  EXPECT_LT(fits.batch.largest, 4000);
  EXPECT_EQ(fits.context.largest, 0);
  EXPECT_EQ(fits.layers.largest, 0);
}

// 200 tokens fit, 256 do not.
TEST(WhatFitsTest, TheCurrentValueNeedBeNoMultiple) {
  const RunConfig config =
      Config({"model.context_length=200", "model.num_layers=2"});
  DeviceInfo device = Gpu("4090");
  device.total_bytes = PlanRun(config, {}, device)->memory.report.total();
  const RunPlan plan = PlanRun(config, {}, device).value();
  EXPECT_EQ(FindWhatFits(plan).context.largest, 200);
}

// A toy fits so often that the search ends at its limits.
TEST(WhatFitsTest, StopsAtItsLimits) {
  const WhatFits fits = FindWhatFits(
      PlanRun(Config({"model.d_model=32", "model.num_heads=2", "model.d_ff=64",
                      "model.num_layers=1", "model.context_length=16",
                      "model.vocab_size=300", "training.batch_size=1"}),
              {}, Gpu("B200"))
          .value());
  EXPECT_TRUE(fits.layers.at_limit);
  EXPECT_EQ(fits.layers.largest, 1024);
  EXPECT_TRUE(fits.batch.at_limit);
}

}  // namespace
}  // namespace tessera
