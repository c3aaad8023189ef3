#include "framework/observe/trace/critical_path.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_split.h"
#include "framework/observe/trace/dependency_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Kind = PathTime::Kind;
using Level = HostRange::Level;

int64_t Us(int64_t us) { return us * 1000; }

// The time of the path's rows with this kind and name, in microseconds.
double UsOf(const CriticalPath& path, Kind kind, const std::string& name = "") {
  for (const PathTime& time : path.times) {
    if (time.kind == kind && time.name == name) return time.ns * 1e-3;
  }
  return 0;
}

double UsIf(const Trace& trace, absl::string_view symbol, double factor) {
  return 1e3 * StepMsIf(trace, BuildDependencyGraph(trace),
                        [&](const DeviceActivity& activity) {
                          return trace.name(activity.name) == symbol ? factor
                                                                     : 1.0;
                        });
}

// Ten launches, 10 us apart; kernels of 2 us begin 5 us after them; the host
// then waits.
Trace HostBound() {
  TraceBuilder b;
  const int step = b.Step("step_1", 0, Us(98));
  b.Range(Level::kPhase, "forward", step, 0, Us(98));
  for (int i = 0; i < 10; ++i) {
    b.Kernel("k", b.Launch(Us(10 * i), Us(10 * i + 4)), Us(10 * i + 5),
             Us(10 * i + 7));
  }
  b.Call("cudaStreamSynchronize_v3020", 99, Us(96), Us(98));
  return b.Build();
}

TEST(CriticalPathTest, OfAHostBoundStepIsTheHost) {
  const Trace trace = HostBound();
  const CriticalPath path = CriticalPathOf(trace, BuildDependencyGraph(trace));
  EXPECT_EQ(path.steps, 1);
  EXPECT_EQ(path.ns, Us(98));
  EXPECT_EQ(UsOf(path, Kind::kHost, "forward"), 90);
  EXPECT_EQ(UsOf(path, Kind::kLaunch), 5);
  EXPECT_EQ(UsOf(path, Kind::kActivity, "k"), 2);  // the last
  EXPECT_EQ(UsOf(path, Kind::kGap), 1);            // to wake up
}

TEST(WhatIfTest, FasterKernelsDoNotHelpAHostBoundStep) {
  const Trace trace = HostBound();
  EXPECT_DOUBLE_EQ(UsIf(trace, "k", 1), 98);
  EXPECT_DOUBLE_EQ(UsIf(trace, "k", 0.5), 97);
  // Slower ones fill the time between launches, and then bind.
  EXPECT_DOUBLE_EQ(UsIf(trace, "k", 5), 106);
  EXPECT_DOUBLE_EQ(UsIf(trace, "k", 50), 5 + 10 * 100 + 1);
  EXPECT_DOUBLE_EQ(UsIf(trace, "no such kernel", 0), 98);
}

// Four launches at once; kernels a, b, a, b of 100 us, 1 us apart.
Trace DeviceBound() {
  TraceBuilder b;
  b.Step("step_1", 0, Us(415));
  for (int i = 0; i < 4; ++i) {
    b.Kernel(i % 2 == 0 ? "a" : "b", b.Launch(Us(2 * i), Us(2 * i + 1)),
             Us(10 + 101 * i), Us(110 + 101 * i));
  }
  b.Call("cudaDeviceSynchronize_v3020", 99, Us(10), Us(415));
  return b.Build();
}

TEST(CriticalPathTest, OfADeviceBoundStepIsTheDevice) {
  const Trace trace = DeviceBound();
  const CriticalPath path = CriticalPathOf(trace, BuildDependencyGraph(trace));
  EXPECT_EQ(path.ns, Us(415));
  EXPECT_EQ(UsOf(path, Kind::kActivity, "a"), 200);
  EXPECT_EQ(UsOf(path, Kind::kActivity, "b"), 200);
  EXPECT_EQ(UsOf(path, Kind::kGap), 3 + 2);
  EXPECT_EQ(UsOf(path, Kind::kLaunch), 10);
  EXPECT_EQ(UsOf(path, Kind::kHost, "outside"), 0);
}

TEST(WhatIfTest, FasterKernelsHelpADeviceBoundStep) {
  const Trace trace = DeviceBound();
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 1), 415);
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 0.5), 315);
  EXPECT_DOUBLE_EQ(UsIf(trace, "b", 2), 615);
  // Without work the launches bind: the last, at 6, takes 10 us, and its kernel
  // begins 1 us after the one before.
  const auto nothing = [](const DeviceActivity&) { return 0.0; };
  EXPECT_DOUBLE_EQ(StepMsIf(trace, BuildDependencyGraph(trace), nothing) * 1e3,
                   17 + 2);
}

TEST(CriticalPathTest, SaysWhatHalfTheTimeOfAKernelSaves) {
  for (const Trace& trace : {DeviceBound(), HostBound()}) {
    const CriticalPath path =
        CriticalPathOf(trace, BuildDependencyGraph(trace));
    for (const PathTime& time : path.times) {
      if (time.kind != Kind::kActivity) {
        EXPECT_EQ(time.saved_ms, 0) << time.name;
        continue;
      }
      EXPECT_DOUBLE_EQ(time.saved_ms * 1e3, time.name == "k" ? 1 : 100);
    }
  }
}

// The device works on earlier steps until 5,000 us. Its first kernel, the
// host's launches long past, does not wait for its launch.
Trace BehindABacklog() {
  TraceBuilder b;
  b.Step("step_5", 0, Us(500));
  b.Step("step_6", Us(500), Us(1000));
  for (int i = 0; i < 10; ++i) {
    b.Kernel("a", b.Launch(Us(100 * i), Us(100 * i + 4)), Us(5000 + 200 * i),
             Us(5190 + 200 * i));
  }
  b.Call("cudaDeviceSynchronize_v3020", 99, Us(1001), Us(7000));
  return b.Build();
}

TEST(CriticalPathTest, BeginsWhereABacklogEnds) {
  const Trace trace = BehindABacklog();
  const CriticalPath path = CriticalPathOf(trace, BuildDependencyGraph(trace));
  EXPECT_EQ(path.ns, Us(2000));
  EXPECT_EQ(UsOf(path, Kind::kActivity, "a"), 1900);
  EXPECT_EQ(UsOf(path, Kind::kLaunch), 0);
}

TEST(WhatIfTest, BeginsWhereABacklogEnds) {
  const Trace trace = BehindABacklog();
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 1), 1000);
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 0.6), 1000 - 10 * 190 * 0.4 / 2);
  // The host keeps its lead.
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 0.1), (10 * 19 + 10 * 10) / 2.0);
}

TEST(WhatIfTest, IsPerStep) {
  Trace trace = DeviceBound();
  trace.ranges.push_back(trace.ranges[0]);
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 0.5), 157.5);
}

TEST(DependencyGraphTest, ACopyThatTheHostWaitsForDelaysIt) {
  TraceBuilder b;
  b.Kernel("k", b.Launch(0, Us(2)), Us(5), Us(205));
  b.Call("cudaMemcpy_v3020", 50, Us(3), Us(220));
  b.Activity(DeviceActivity::Kind::kCopy, "copy D2H", 50, Us(206), Us(216));
  b.Kernel("next", b.Launch(Us(221), Us(223)), Us(226), Us(227));
  // All that follows is 100 us earlier.
  EXPECT_DOUBLE_EQ(UsIf(b.Build(), "k", 0.5), 127);
}

TEST(DependencyGraphTest, AnEventOfAnotherStreamDelays) {
  TraceBuilder b;
  b.Kernel("compute", b.Launch(0, Us(2)), Us(5), Us(205), /*stream=*/7);
  b.Kernel("reduce", b.Launch(Us(3), Us(4)), Us(208), Us(308), /*stream=*/20);
  b.Kernel("other", b.Launch(Us(5), Us(6)), Us(8), Us(9), /*stream=*/21);
  EXPECT_DOUBLE_EQ(UsIf(b.Build(), "compute", 0.5), 208);
  // 30 us are too long for an event: what held it up is not known.
  b.trace().activities[1].begin_ns += Us(27);
  b.trace().activities[1].end_ns += Us(27);
  EXPECT_DOUBLE_EQ(UsIf(b.Build(), "compute", 0.5), 335);
}

TEST(DependencyGraphTest, AFullQueueDelaysTheHost) {
  TraceBuilder b;
  b.Kernel("k", b.Launch(0, Us(2)), Us(5), Us(305));
  b.Kernel("second", b.Launch(Us(3), Us(310)), Us(311), Us(312));
  b.Kernel("third", b.Launch(Us(400), Us(402)), Us(405), Us(406));
  EXPECT_DOUBLE_EQ(UsIf(b.Build(), "k", 0.5), 256);
}

TEST(DependencyGraphTest, CallsWithinCallsBelongToThem) {
  TraceBuilder b;
  b.Call("cudaLaunchKernel", 1, 0, Us(10));
  b.Call("cuLaunchKernel", 2, Us(2), Us(8));
  b.Kernel("k", 2, Us(12), Us(20));
  const Trace trace = b.Build();
  const DependencyGraph graph = BuildDependencyGraph(trace);
  ASSERT_EQ(graph.nodes.size(), 3u);
  ASSERT_EQ(graph.nodes[2].waits.size(), 1u);
  EXPECT_EQ(graph.nodes[2].waits[0].node, 0);
}

TEST(DependencyGraphTest, OverlapOnOneStreamIsKept) {
  TraceBuilder b;  // programmatic dependent launch
  b.Kernel("a", b.Launch(0, Us(1)), Us(5), Us(105));
  b.Kernel("b", b.Launch(Us(2), Us(3)), Us(95), Us(195));
  const Trace trace = b.Build();
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 1), 195);
  EXPECT_DOUBLE_EQ(UsIf(trace, "a", 0.5), 145);
  const CriticalPath path = CriticalPathOf(trace, BuildDependencyGraph(trace));
  EXPECT_EQ(path.ns, Us(195));
  EXPECT_EQ(UsOf(path, Kind::kActivity, "b"), 90);
}

// A replay without a change is the recording, and the path fills it.
TEST(CriticalPathTest, RandomTracesAreReplayedExactly) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int n) { return static_cast<int64_t>(random() % n); };
    TraceBuilder b;
    const int step = b.Step("step_1", 0, INT64_MAX);
    b.Range(Level::kPhase, "forward", step, 10, INT64_MAX);
    int64_t host = 0, last = 0;
    int64_t device[3] = {};
    for (int i = 0; i < 300; ++i) {
      host += draw(20'000);
      const int64_t begin = host;
      host += draw(3) == 0 ? draw(200'000) : draw(5'000);
      const int64_t stream = draw(3);
      if (draw(10) == 0) {
        host = std::max(host, device[stream]);
        b.Call("cudaStreamSynchronize", 1000 + i, begin, host);
      } else {
        const uint32_t correlation = b.Launch(begin, host);
        const int64_t kernel =
            std::max(device[stream], begin + draw(8'000)) + draw(4'000);
        device[stream] = kernel + draw(100'000);
        b.Kernel(draw(2) == 0 ? "a" : "b", correlation, kernel, device[stream],
                 stream);
      }
      last = std::max({last, host, device[stream]});
    }
    const Trace trace = b.Build();
    const DependencyGraph graph = BuildDependencyGraph(trace);
    EXPECT_EQ(graph.order.size(), graph.nodes.size());
    const double recorded =
        static_cast<double>(last - trace.calls[0].begin_ns) * 1e-6;
    EXPECT_DOUBLE_EQ(UsIf(trace, "a", 1), 1e3 * recorded) << seed;
    EXPECT_LE(UsIf(trace, "a", 0.5), 1e3 * recorded);
    EXPECT_GE(UsIf(trace, "a", 2), 1e3 * recorded);
    const CriticalPath path = CriticalPathOf(trace, graph);
    EXPECT_EQ(path.ns, last - trace.calls[0].begin_ns) << seed;
  }
}

TEST(CriticalPathTest, EmptyTraces) {
  const Trace trace;
  const DependencyGraph graph = BuildDependencyGraph(trace);
  EXPECT_EQ(CriticalPathOf(trace, graph).ns, 0);
  EXPECT_EQ(StepMsIf(trace, graph, [](const auto&) { return 2; }), 0);
  EXPECT_FALSE(FormatCriticalPath({}).empty());
}

TEST(CriticalPathTest, TableAndJson) {
  Trace trace = HostBound();
  trace.names[trace.activities[0].name] =
      "void f<" + std::string(200, 'x') + ">(int)";
  const CriticalPath path = CriticalPathOf(trace, BuildDependencyGraph(trace));
  const std::string text = FormatCriticalPath(path, /*max_rows=*/3);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(text, HasSubstr("critical path of 0.098 ms per step"));
  EXPECT_THAT(text, HasSubstr("host    forward"));
  const nlohmann::ordered_json json = CriticalPathToJson(path);
  EXPECT_DOUBLE_EQ(json["ms"], 0.098);
  EXPECT_EQ(json["times"][0]["kind"], "host");
  EXPECT_EQ(json["times"][0]["pieces"], 18);
  EXPECT_EQ(json["times"].size(), 4u);
}

}  // namespace
}  // namespace tessera::testing
