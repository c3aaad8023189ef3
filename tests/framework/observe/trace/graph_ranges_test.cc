#include "framework/observe/trace/graph_ranges.h"

#include "gtest/gtest.h"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using Level = HostRange::Level;

// forward > qkv, and optimizer; a node before both.
const GraphRanges kGraph = {.ranges = {{Level::kPhase, "forward", -1},
                                       {Level::kOp, "qkv", 0},
                                       {Level::kPhase, "optimizer", -1}},
                            .range_of_node = {-1, 1, 0, 2}};

// A step that launches a graph whose four nodes finish out of order.
void AddStep(TraceBuilder& b, const char* name, uint32_t correlation,
             int64_t at) {
  b.Step(name, at, at + 100);
  b.Call("cudaGraphLaunch", correlation, at + 10, at + 20);
  for (const uint64_t node : {700, 705, 702, 709}) {
    const int64_t begin = at + 30 + static_cast<int64_t>(node - 700);
    b.Kernel("k", correlation, begin, begin + 1);
    b.trace().activities.back().graph_node = node;
  }
}

TEST(GraphRangesTest, NodesBelongToTheOpsInWhichTheyWereRecorded) {
  TraceBuilder b;
  AddStep(b, "step_1", 11, 0);
  AddStep(b, "step_2", 12, 200);
  Trace trace = b.Build();
  AttributeToGraph(kGraph, &trace);
  ASSERT_EQ(trace.ranges.size(), 2u + 2 * 3);
  const char* const paths[] = {"", "forward/qkv", "forward", "optimizer"};
  for (int i = 0; i < 8; ++i) {
    const int range = trace.activities[i].range;
    EXPECT_EQ(trace.PathOf(range), paths[i % 4]) << i;
    int step = range;
    while (trace.ranges[step].parent >= 0) step = trace.ranges[step].parent;
    EXPECT_EQ(step, i / 4);
  }
  EXPECT_TRUE(trace.ranges[2].in_graph);
  EXPECT_EQ(trace.ranges[2].begin_ns, 10);
}

TEST(GraphRangesTest, AnotherGraphStaysWithItsLaunch) {
  TraceBuilder b;
  AddStep(b, "step_1", 11, 0);
  b.Kernel("k", 11, 50, 51);
  b.trace().activities.back().graph_node = 710;
  Trace trace = b.Build();
  AttributeToGraph(kGraph, &trace);
  EXPECT_EQ(trace.ranges.size(), 1u);
  for (const DeviceActivity& activity : trace.activities) {
    EXPECT_EQ(activity.range, 0);
  }
}

}  // namespace
}  // namespace tessera::testing
