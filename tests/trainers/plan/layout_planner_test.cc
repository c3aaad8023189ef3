#include "trainers/plan/layout_planner.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/cuda/device_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainers/config/config_loader.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunConfig Small(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"training.batch_size=16",
                                   "model.num_layers=3"};
  sets.insert(sets.end(), more.begin(), more.end());
  return LoadRunConfig({"configs/small_bf16.pbtxt"}, sets).value();
}

ClusterConfig TwoH100() {
  return ReadCluster("configs/cluster/two_h100.pbtxt").value();
}

TEST(PlanLayoutsTest, MemoryIsThatOfThePlanOfARun) {
  const RunConfig config = Small();
  const LayoutPlans plans = PlanLayouts(config, TwoH100()).value();
  // One rank, and two with and without ZeRO 1; with four policies.
  std::set<std::pair<int, int>> seen;
  for (const PlannedLayout& planned : plans.layouts) {
    const int ranks = planned.layout.mesh.ranks();
    seen.emplace(ranks, planned.layout.zero);
    RunConfig same = config;
    same.mutable_layout()->set_zero(planned.layout.zero);
    same.mutable_recompute()->set_policy(planned.recompute);
    WorldInfo world;
    world.world_size = world.local_world_size = ranks;
    const auto plan = PlanRun(same, world, DeviceToPlanFor("H100").value());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(planned.status.ok()) << planned.status;
    EXPECT_EQ(planned.memory.total(), plan->memory.report.total());
    EXPECT_GT(planned.time.step, 0);
    EXPECT_GE(planned.time.waiting(), 0);
    EXPECT_EQ(planned.time.communication > 0, ranks > 1);
  }
  EXPECT_THAT(seen, ::testing::IsSupersetOf(
                        {std::pair(1, 0), std::pair(2, 0), std::pair(2, 1)}));
  EXPECT_FALSE(seen.contains({1, 1}));
  EXPECT_EQ(plans.layouts.size(), 4 * seen.size());
  EXPECT_TRUE(std::is_sorted(
      plans.layouts.begin(), plans.layouts.end(),
      [](const auto& a, const auto& b) { return a.time.step < b.time.step; }));
  EXPECT_TRUE(CheckAnyFits(plans).ok());
  EXPECT_THAT(FormatLayouts(plans),
              AllOf(HasSubstr("1 node with 2 x NVIDIA H100 80GB HBM3"),
                    HasSubstr("first       2 ranks, ZeRO "),
                    HasSubstr("1 rank, ZeRO 0, NONE takes "),
                    Not(HasSubstr("too large"))));
}

// Ranks that divide the state across nodes have no copy engines between them.
TEST(PlanLayoutsTest, MemoryAcrossNodesIsThatOfThePlanOfARunThere) {
  ClusterConfig cluster = TwoH100();
  cluster.set_nodes(2);
  *cluster.mutable_between_nodes() = cluster.inside_node();
  const RunConfig config = Small();
  const LayoutPlans plans = PlanLayouts(config, cluster).value();
  for (const PlannedLayout& planned : plans.layouts) {
    const int ranks = planned.layout.mesh.ranks();
    RunConfig same = config;
    same.mutable_layout()->set_zero(planned.layout.zero);
    same.mutable_recompute()->set_policy(planned.recompute);
    WorldInfo world;
    world.world_size = ranks;
    world.local_world_size = std::min(ranks, 2);
    const auto plan = PlanRun(same, world, DeviceToPlanFor("H100").value());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(planned.memory.total(), plan->memory.report.total())
        << ranks << " ranks, ZeRO " << planned.layout.zero;
  }
}

TEST(PlanLayoutsTest, CountsRanksInPowersOfTwoAndAllGpus) {
  ClusterConfig cluster = TwoH100();
  cluster.set_nodes(3);
  *cluster.mutable_between_nodes() = cluster.inside_node();
  const LayoutPlans plans =
      PlanLayouts(Small({"training.batch_size=24"}), cluster).value();
  std::set<int> counts;
  for (const PlannedLayout& p : plans.layouts) {
    counts.insert(p.layout.mesh.ranks());
  }
  EXPECT_EQ(counts, (std::set<int>{1, 2, 4, 6}));
}

// The layout with `ranks`, ZeRO 0 and no recomputation.
PlannedLayout Plain(const LayoutPlans& plans, int ranks) {
  return *std::find_if(
      plans.layouts.begin(), plans.layouts.end(), [&](const auto& p) {
        return p.layout.mesh.ranks() == ranks && p.layout.zero == 0 &&
               p.recompute == RecomputeConfig::NONE;
      });
}

TEST(PlanLayoutsTest, ASlowLinkMakesOneGpuTheFastest) {
  ClusterConfig cluster = TwoH100();
  cluster.set_nodes(2);
  *cluster.mutable_between_nodes() = cluster.inside_node();
  const LayoutPlans fast = PlanLayouts(Small(), cluster).value();
  EXPECT_EQ(fast.layouts.front().layout.mesh.ranks(), 4);
  // Runs of two ranks stay inside a node.
  cluster.mutable_between_nodes()->set_reduce_scatter_gb_per_s(0.5);
  const LayoutPlans slow = PlanLayouts(Small(), cluster).value();
  EXPECT_EQ(slow.layouts.front().layout.mesh.ranks(), 2);
  EXPECT_EQ(Plain(slow, 2).time.step, Plain(fast, 2).time.step);
  EXPECT_EQ(Plain(slow, 4).time.compute, Plain(fast, 4).time.compute);
  EXPECT_GT(Plain(slow, 4).time.waiting(), Plain(fast, 4).time.waiting());
  cluster.mutable_inside_node()->set_all_gather_gb_per_s(0.1);
  const LayoutPlans one = PlanLayouts(Small(), cluster).value();
  EXPECT_EQ(one.layouts.front().layout.mesh.ranks(), 1);
}

TEST(PlanLayoutsTest, TheClustersFiguresReplaceThoseOfTheDataSheet) {
  ClusterConfig cluster = TwoH100();
  cluster.set_gap_us(0);
  cluster.set_product_efficiency(0.5);
  cluster.set_memory_efficiency(0.5);
  const double half = Plain(*PlanLayouts(Small(), cluster), 1).time.compute;
  cluster.set_product_efficiency(1);
  cluster.set_memory_efficiency(1);
  const double whole = Plain(*PlanLayouts(Small(), cluster), 1).time.compute;
  EXPECT_NEAR(half, 2 * whole, 1e-9 * half);
  // A tenth of the rates, except of vector operations.
  cluster.set_product_tflops(98.9);
  cluster.set_memory_gb_per_s(335);
  EXPECT_NEAR(Plain(*PlanLayouts(Small(), cluster), 1).time.compute, 10 * whole,
              1e-9 * whole);
}

TEST(PlanLayoutsTest, SaysWhatDoesNotFitAndWhatCannotRun) {
  // One byte less than one rank needs without recomputation. Two ranks also
  // need memory for NCCL, less than half of the activations.
  ClusterConfig cluster = TwoH100();
  const RunConfig config = Small({"training.batch_size=64"});
  const LayoutPlans all = PlanLayouts(config, cluster).value();
  cluster.set_memory_gib(static_cast<double>(Plain(all, 1).memory.total() - 1) /
                         (1 << 30));
  const std::string text = FormatLayouts(*PlanLayouts(config, cluster));
  EXPECT_THAT(text,
              AllOf(HasSubstr("first       2 ranks"),
                    HasSubstr("too large   1 rank, ZeRO 0 with NONE: needs "),
                    HasSubstr("largest"),
                    Not(HasSubstr("1 rank, ZeRO 0, NONE takes"))));

  const LayoutPlans odd =
      PlanLayouts(Small({"training.batch_size=3"}), TwoH100()).value();
  EXPECT_TRUE(CheckAnyFits(odd).ok());
  EXPECT_THAT(FormatLayouts(odd),
              AllOf(HasSubstr("first       1 rank, ZeRO 0"),
                    HasSubstr("cannot run  2 ranks: training.batch_size: is "
                              "3")));

  cluster.set_memory_gib(0.25);
  const LayoutPlans none = PlanLayouts(Small(), cluster).value();
  const absl::Status status = CheckAnyFits(none);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no layout of this cluster fits"));
  // The policy that needs least comes first.
  EXPECT_THAT(FormatLayouts(none),
              AllOf(HasSubstr("too large   2 ranks, ZeRO 1 with BLOCK, FFN, "
                              "ATTENTION, NONE: needs at least"),
                    Not(HasSubstr("first "))));
}

TEST(PlanLayoutsTest, RefusesAnUnknownGpu) {
  ClusterConfig cluster = TwoH100();
  cluster.set_gpu("H101");
  EXPECT_THAT(std::string(PlanLayouts(Small(), cluster).status().message()),
              HasSubstr("unknown GPU 'H101'"));
}

TEST(ReadClusterTest, NamesEveryBrokenRuleWithItsPlace) {
  const std::string path = testing::TempDir() + "/cluster.pbtxt";
  const auto error = [&](const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    const absl::Status status = ReadCluster(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("nodes: 0\ngpu: \"H100\"\nmemory_gib: -1\n"),
              AllOf(HasSubstr("cluster.pbtxt:1:1: nodes: must be in [1, 4096]"),
                    HasSubstr("cluster.pbtxt:3:1: memory_gib: ")));
  EXPECT_THAT(error("gpu: \"H100\" product_efficiency: 1.5"),
              HasSubstr("product_efficiency: must be in (0, 1]; is 1.5"));
  EXPECT_THAT(error("gpu: \"H100\" memory_efficiency: 0"),
              HasSubstr("memory_efficiency: must be in (0, 1]; is 0"));
  EXPECT_THAT(error("gpu: \"H100\" product_tflops: 0"),
              HasSubstr("product_tflops: "));
  EXPECT_THAT(error("gpu: \"H100\" memory_gb_per_s: 0"),
              HasSubstr("memory_gb_per_s: "));
  EXPECT_THAT(error("gpu: \"H100\" gpus_per_node: 2"),
              HasSubstr("inside_node.all_reduce_gb_per_s: "));
  EXPECT_THAT(error("gpu: \"H100\" nodes: 2"),
              AllOf(HasSubstr("between_nodes.all_gather_gb_per_s: "),
                    Not(HasSubstr("inside_node"))));
  EXPECT_THAT(error("gpu: \"H100\" gpus_per_node: 2 inside_node {"
                    " all_reduce_gb_per_s: 1 all_gather_gb_per_s: 1"
                    " reduce_scatter_gb_per_s: 1 latency_us: -1 }"),
              HasSubstr("inside_node.latency_us: "));
  EXPECT_THAT(error("gpus: 2"), HasSubstr("gpus"));
  EXPECT_EQ(ReadCluster("/nowhere.pbtxt").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
