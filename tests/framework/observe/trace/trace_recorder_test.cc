#include "framework/observe/trace/trace_recorder.h"

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/device.h"
#include "framework/cuda/stream_write.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// A device whose clock is advanced by hand.
class ScriptedSource : public ActivitySource {
 public:
  absl::Status Start() override { return {}; }
  absl::Status Stop(Trace* trace) override {
    NameTable names(&trace->names);
    for (const auto& [correlation, begin_ns] : launches) {
      trace->calls.push_back({.name = names.IndexOf("launch"),
                              .begin_ns = begin_ns,
                              .end_ns = begin_ns + 1,
                              .thread = trace->thread,
                              .correlation = correlation});
      trace->activities.push_back({.name = names.IndexOf("kernel"),
                                   .begin_ns = begin_ns + 1000,
                                   .end_ns = begin_ns + 1001,
                                   .correlation = correlation});
    }
    trace->activities.insert(trace->activities.end(), in_graph.begin(),
                             in_graph.end());
    return {};
  }
  int64_t NowNs() const override { return now_ns; }
  int64_t NumGraphNodes() const override { return graph_nodes; }
  void AfterOp() override { ++ended; }

  std::map<uint32_t, int64_t> launches;
  std::vector<DeviceActivity> in_graph;
  int64_t now_ns = 0;
  int64_t graph_nodes = -1;
  int ended = 0;
};

// The path of each node of a graph with nodes [1, count], whose launch has the
// correlation 7. Ends the trace.
std::vector<std::string> PathsOfNodes(TraceRecorder* recorder,
                                      ScriptedSource* source, uint64_t count) {
  for (uint64_t node = 1; node <= count; ++node) {
    source->in_graph.push_back({.begin_ns = 2000 + static_cast<int>(node),
                                .end_ns = 3000,
                                .correlation = 7,
                                .graph_node = node});
  }
  std::vector<std::string> paths;
  const absl::StatusOr<Trace> trace = recorder->Stop();
  EXPECT_TRUE(trace.ok()) << trace.status();
  if (!trace.ok()) return paths;
  for (const DeviceActivity& activity : trace->activities) {
    if (activity.graph_node != 0) {
      paths.push_back(trace->PathOf(activity.range));
    }
  }
  return paths;
}

TEST(TraceRecorderTest, KeepsWhatTheHostIssuedAfterTheWarmUp) {
  auto owned = std::make_unique<ScriptedSource>();
  ScriptedSource* const source = owned.get();
  TraceRecorder recorder(std::move(owned));
  const auto launch = [&](uint32_t correlation) {
    source->now_ns += 10;
    source->launches[correlation] = source->now_ns;
    source->now_ns += 10;
  };
  ASSERT_TRUE(recorder.Start().ok());
  {
    const StepScope step(&recorder, 1);
    launch(1);
  }
  recorder.Keep();
  {
    const StepScope step(&recorder, 2);
    const PhaseScope forward(&recorder, "forward");
    {
      const OpScope op(&recorder, "qkv");
      const PhaseScope scores(&recorder, "scores");
      launch(2);
    }
    launch(3);
  }
  launch(4);
  EXPECT_EQ(source->ended, 4);  // the step and what is in it
  const absl::StatusOr<Trace> trace = recorder.Stop();
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::map<uint32_t, std::string> paths;
  for (const DeviceActivity& activity : trace->activities) {
    paths[activity.correlation] = trace->PathOf(activity.range);
  }
  EXPECT_THAT(paths, testing::ElementsAre(
                         testing::Pair(2, "forward/qkv/scores"),
                         testing::Pair(3, "forward"), testing::Pair(4, "")));
  ASSERT_EQ(trace->ranges.size(), 4u);
  EXPECT_EQ(trace->names[trace->ranges[0].name], "step_2");
  EXPECT_EQ(trace->ranges[0].end_ns, trace->ranges[1].end_ns);
}

// A graph that is recorded before the trace begins, and again, with a node
// less.
TEST(TraceRecorderTest, NotesInWhichOpsAGraphWasRecorded) {
  auto owned = std::make_unique<ScriptedSource>();
  ScriptedSource* const source = owned.get();
  TraceRecorder recorder(std::move(owned));
  for (const int nodes_of_op : {3, 2}) {
    const StepScope step(&recorder, 1);
    source->graph_nodes = 1;
    {
      const PhaseScope forward(&recorder, "forward");
      source->graph_nodes += 1;
      {
        const OpScope op(&recorder, "qkv");
        source->graph_nodes += nodes_of_op;
      }
      source->graph_nodes += 1;
    }
    source->graph_nodes = -1;
  }
  ASSERT_TRUE(recorder.Start().ok());
  recorder.Keep();
  {
    const StepScope step(&recorder, 2);
    source->now_ns += 10;
    source->launches[7] = source->now_ns;
  }
  EXPECT_THAT(PathsOfNodes(&recorder, source, 5),
              testing::ElementsAre("", "forward", "forward/qkv", "forward/qkv",
                                   "forward"));
}

// As after an op that a graph cannot hold: its phases still end, and the next
// recording counts.
TEST(TraceRecorderTest, DropsARecordingThatFails) {
  auto owned = std::make_unique<ScriptedSource>();
  ScriptedSource* const source = owned.get();
  TraceRecorder recorder(std::move(owned));
  for (const bool fails : {true, false}) {
    const StepScope step(&recorder, 1);
    source->graph_nodes = fails ? 1 : 2;
    {
      const PhaseScope forward(&recorder, "forward");
      {
        const OpScope op(&recorder, "qkv");
        ++source->graph_nodes;
        if (fails) source->graph_nodes = -1;
      }
      const OpScope op(&recorder, "sdpa");
      if (!fails) ++source->graph_nodes;
    }
    source->graph_nodes = -1;
  }
  ASSERT_TRUE(recorder.Start().ok());
  recorder.Keep();
  source->launches[7] = 1;
  EXPECT_THAT(PathsOfNodes(&recorder, source, 4),
              testing::ElementsAre("", "", "forward/qkv", "forward/sdpa"));
}

TEST(TraceRecorderTest, OnTheHostAnOpIsItsActivity) {
  TraceRecorder recorder(HostActivities(/*max_records=*/1000));
  for (int window = 0; window < 2; ++window) {
    ASSERT_TRUE(recorder.Start().ok());
    recorder.Keep();
    {
      const StepScope step(&recorder, 1);
      const PhaseScope forward(&recorder, "forward");
      const OpScope op(&recorder, "qkv");
      const PhaseScope scores(&recorder, "scores");
    }
    const absl::StatusOr<Trace> trace = recorder.Stop();
    ASSERT_TRUE(trace.ok()) << trace.status();
    ASSERT_EQ(trace->activities.size(), 1u);
    EXPECT_EQ(trace->PathOf(trace->activities[0].range), "forward/qkv");
    EXPECT_LE(trace->activities[0].begin_ns, trace->activities[0].end_ns);
  }
}

TEST(TraceRecorderTest, OnTheHostCountsWhatGoesBeyondItsLimit) {
  TraceRecorder recorder(HostActivities(/*max_records=*/5));
  ASSERT_TRUE(recorder.Start().ok());
  recorder.Keep();
  for (int i = 0; i < 10; ++i) const OpScope op(&recorder, "qkv");
  const absl::StatusOr<Trace> trace = recorder.Stop();
  ASSERT_TRUE(trace.ok()) << trace.status();
  // A call and an activity each.
  EXPECT_EQ(trace->activities.size(), 2u);
  EXPECT_EQ(trace->calls.size(), 2u);
  EXPECT_EQ(trace->dropped, 16);
}

// The name of each kernel, copy or fill, with where it was issued.
std::multiset<std::pair<std::string, std::string>> IssuedBy(
    const Trace& trace) {
  std::multiset<std::pair<std::string, std::string>> issued;
  for (const DeviceActivity& activity : trace.activities) {
    issued.emplace(trace.PathOf(activity.range), trace.names[activity.name]);
  }
  return issued;
}

TEST(GpuTraceRecorderTest, KernelsBelongToTheOpsThatIssuedThem) {
  if constexpr (!kCudaBuild) GTEST_SKIP() << "needs a CUDA build";
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  if constexpr (kCudaBuild) {
    // The first use of a kernel loads its module, by hundreds of calls.
    TraceRecorder recorder(CuptiActivities(/*max_records=*/100000));
    const at::Tensor a = at::ones({512, 512}, at::device(at::kCUDA));
    const at::Tensor host = at::empty({512, 512});
    // The second window finds what the first left behind.
    for (int window = 0; window < 2; ++window) {
      const absl::Status started = recorder.Start();
      ASSERT_TRUE(started.ok()) << started;
      a.add(1);
      recorder.Keep();
      {
        const StepScope step(&recorder, 1);
        {
          const OpScope op(&recorder, "product");
          a.mm(a);
        }
        const PhaseScope phase(&recorder, "forward");
        const OpScope op(&recorder, "sum");
        a.add(a);
        host.copy_(a);
      }
      const absl::StatusOr<Trace> trace = recorder.Stop();
      ASSERT_TRUE(trace.ok()) << trace.status();
      EXPECT_EQ(trace->dropped, 0);
      std::multiset<std::string> paths;
      for (const auto& [path, name] : IssuedBy(*trace)) paths.insert(path);
      EXPECT_GE(paths.count("product"), 1u)
          << testing::PrintToString(IssuedBy(*trace));
      EXPECT_EQ(paths.count("forward/sum"), 2u)
          << testing::PrintToString(IssuedBy(*trace));
      EXPECT_EQ(paths.count(""), 0u)
          << testing::PrintToString(IssuedBy(*trace));
      int64_t copied = 0;
      for (const DeviceActivity& activity : trace->activities) {
        EXPECT_LT(activity.begin_ns, activity.end_ns);
        if (activity.kind == DeviceActivity::Kind::kCopy) {
          copied += activity.bytes;
        }
      }
      EXPECT_EQ(copied, 512 * 512 * 4);
    }
  }
}

// As ranks count their communications.
TEST(GpuTraceRecorderTest, AnOpOfAGraphMayWriteToTheHost) {
  if constexpr (!kCudaBuild) GTEST_SKIP() << "needs a CUDA build";
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  if constexpr (kCudaBuild) {
    const c10::Device device(c10::kCUDA, 0);
    ASSERT_TRUE(OpenCudaDevice(0).ok());
    TraceRecorder recorder(CuptiActivities(/*max_records=*/1000));
    const at::Tensor a = at::zeros({512}, at::device(at::kCUDA));
    const at::Tensor word = at::zeros({1}, at::kLong).pin_memory();
    const auto graph = MakeCudaGraph(device);
    const absl::Status captured = graph->Capture([&]() -> absl::Status {
      const PhaseScope phase(&recorder, "forward");
      {
        const OpScope op(&recorder, "gather");
        a.add_(1);
        RETURN_IF_ERROR(cuda::WriteOnStream(
            device, {{.word = word.data_ptr<int64_t>(), .value = 7}}));
      }
      const OpScope op(&recorder, "sum");
      a.add_(1);
      return absl::OkStatus();
    });
    ASSERT_TRUE(captured.ok()) << captured;
    const absl::Status started = recorder.Start();
    ASSERT_TRUE(started.ok()) << started;
    recorder.Keep();
    ASSERT_TRUE(graph->Launch().ok());
    const absl::StatusOr<Trace> trace = recorder.Stop();
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(word.item<int64_t>(), 7);
    EXPECT_EQ(a[0].item<float>(), 2);
    std::multiset<std::string> paths;
    for (const auto& [path, name] : IssuedBy(*trace)) paths.insert(path);
    EXPECT_THAT(paths, testing::ElementsAre("forward/gather", "forward/sum"));
  }
}

TEST(GpuTraceRecorderTest, CountsWhatGoesBeyondItsLimit) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  if constexpr (kCudaBuild) {
    TraceRecorder recorder(CuptiActivities(/*max_records=*/100));
    const at::Tensor a = at::ones({512}, at::device(at::kCUDA));
    ASSERT_TRUE(recorder.Start().ok());
    recorder.Keep();
    for (int i = 0; i < 1000; ++i) a.add(1);
    const absl::StatusOr<Trace> trace = recorder.Stop();
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->activities.size() + trace->calls.size(), 100u);
    // A launch and a kernel each.
    EXPECT_GE(trace->dropped, 1900);
  }
}

}  // namespace
}  // namespace tessera
