#include "framework/observe/trace/idle_time.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Level = HostRange::Level;

constexpr char kAllReduce[] =
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>"
    ")";

// Times in microseconds.
int64_t Us(double us) { return static_cast<int64_t>(us * 1000); }

// A stream with a gap of each class:
//   a ends at 100; b, launched before that, begins at 102  kernel wait
//   b ends at 200; c, launched at 250, begins at 260       host wait
//   c ends at 300; d, launched before that, begins at 350  other
TraceBuilder ThreeGaps() {
  TraceBuilder b;
  const int step = b.Step("step_1", 0, Us(400));
  const int forward = b.Range(Level::kPhase, "forward", step, 0, Us(400));
  b.Range(Level::kOp, "qkv", forward, Us(245), Us(256));
  b.Kernel("a", b.Launch(Us(1), Us(4)), Us(10), Us(100));
  b.Kernel("b", b.Launch(Us(5), Us(8)), Us(102), Us(200));
  const uint32_t late = b.Launch(Us(250), Us(255));
  b.Kernel("void ns::c<float>(int)", late, Us(260), Us(300));
  b.Kernel("d", b.Launch(Us(290), Us(293)), Us(350), Us(352));
  return b;
}

TEST(IdleTimeTest, GapsHaveThreeClasses) {
  const IdleTimeReport report = AnalyzeIdleTime(ThreeGaps().Build());
  ASSERT_EQ(report.streams.size(), 1u);
  const StreamIdleTime& stream = report.streams[0];
  EXPECT_EQ(stream.stream, 7);
  EXPECT_EQ(stream.idle.kernel_wait_ns, Us(2));
  EXPECT_EQ(stream.idle.host_wait_ns, Us(60));
  EXPECT_EQ(stream.idle.other_ns, Us(50));
  EXPECT_EQ(stream.busy_ns, Us(90 + 98 + 40 + 2));
  EXPECT_EQ(stream.busy_ns + stream.idle.total(), report.device.span_ns);
}

TEST(IdleTimeTest, TheThresholdIsAnOption) {
  const Trace trace = ThreeGaps().Build();
  IdleTime idle =
      AnalyzeIdleTime(trace, {.kernel_wait_below_ns = Us(2)}).streams[0].idle;
  EXPECT_EQ(idle.kernel_wait_ns, 0);  // the gap is no shorter
  EXPECT_EQ(idle.other_ns, Us(52));
  idle =
      AnalyzeIdleTime(trace, {.kernel_wait_below_ns = Us(51)}).streams[0].idle;
  EXPECT_EQ(idle.kernel_wait_ns, Us(52));
  EXPECT_EQ(idle.host_wait_ns, Us(60));  // however short, it is the host's
}

TEST(IdleTimeTest, AnActivityWithoutItsCallIsNotTheHostsFault) {
  TraceBuilder b;
  b.Kernel("a", 1, 0, Us(10));
  b.Kernel("b", 2, Us(11), Us(20));
  EXPECT_EQ(AnalyzeIdleTime(b.Build()).streams[0].idle.kernel_wait_ns, Us(1));
}

// A call takes long if the queue is full, or on a slow host. It was on time if
// it began on time.
TEST(IdleTimeTest, TheHostIsLateOnlyIfItsCallBeginsLate) {
  for (const bool late : {false, true}) {
    TraceBuilder b;
    b.Kernel("a", b.Launch(0, Us(1)), Us(10), Us(100));
    const double begin = late ? 101 : 99;
    b.Kernel("b", b.Launch(Us(begin), Us(108)), Us(110), Us(120));
    const IdleTime idle = AnalyzeIdleTime(b.Build()).device.idle;
    EXPECT_EQ(idle.host_wait_ns, late ? Us(10) : 0);
    EXPECT_EQ(idle.kernel_wait_ns, late ? 0 : Us(10));
  }
}

TEST(IdleTimeTest, ALongActivityCoversAShortOneOfAnotherStream) {
  TraceBuilder b;
  b.Kernel("long", b.Launch(0, Us(1)), Us(10), Us(100), /*stream=*/7);
  b.Kernel("short", b.Launch(Us(1), Us(2)), Us(20), Us(30), /*stream=*/8);
  b.Kernel("next", b.Launch(Us(2), Us(3)), Us(110), Us(120), /*stream=*/7);
  const IdleTimeReport report = AnalyzeIdleTime(b.Build());
  EXPECT_EQ(report.device.idle.total(), Us(10));
  EXPECT_EQ(report.device.compute_ns, Us(100));
  EXPECT_EQ(report.device.span_ns, Us(110));
  ASSERT_EQ(report.longest.size(), 1u);
  EXPECT_EQ(report.longest[0].begin_ns, Us(100));
}

TEST(IdleTimeTest, TheDeviceIsIdleWhileNoStreamIsBusy) {
  TraceBuilder b;
  b.Kernel("a", b.Launch(0, Us(1)), Us(10), Us(20), /*stream=*/7);
  b.Kernel("b", b.Launch(Us(1), Us(2)), Us(15), Us(40), /*stream=*/8);
  b.Kernel("c", b.Launch(Us(2), Us(3)), Us(50), Us(60), /*stream=*/7);
  const IdleTimeReport report = AnalyzeIdleTime(b.Build());
  ASSERT_EQ(report.streams.size(), 2u);
  EXPECT_EQ(report.streams[0].idle.other_ns, Us(30));
  EXPECT_EQ(report.streams[1].idle.total(), 0);
  EXPECT_EQ(report.device.idle.kernel_wait_ns, Us(10));
  EXPECT_EQ(report.device.span_ns, Us(50));
  EXPECT_EQ(report.device.compute_ns, Us(40));
}

TEST(IdleTimeTest, NamesTheBusiestStreams) {
  TraceBuilder b;
  for (const int64_t stream : {1, 2, 3, 4, 5}) {
    const int64_t us = stream == 2 ? 9 : stream == 5 ? 7 : 3;
    b.Kernel("a", b.Launch(0, Us(1)), Us(10), Us(10 + us), stream);
  }
  const IdleTimeReport report = AnalyzeIdleTime(b.Build(), {.most_streams = 3});
  std::vector<int64_t> streams;
  for (const StreamIdleTime& stream : report.streams) {
    streams.push_back(stream.stream);
  }
  EXPECT_EQ(streams, (std::vector<int64_t>{1, 2, 5}));
  EXPECT_EQ(report.other_streams, 2);
  EXPECT_EQ(report.device.compute_ns, Us(9));
  EXPECT_THAT(FormatIdleTime(report),
              HasSubstr("and 2 streams that were less busy\n"));
}

TEST(IdleTimeTest, BoundsAddUp) {
  TraceBuilder b;
  b.Kernel("a", b.Launch(0, Us(1)), Us(10), Us(40));
  // 20 us under compute, 10 us alone.
  b.Kernel(kAllReduce, b.Launch(Us(1), Us(2)), Us(20), Us(50), /*stream=*/20);
  b.Kernel("b", b.Launch(Us(2), Us(3)), Us(55), Us(60));      // kernel wait 5
  b.Kernel("c", b.Launch(Us(70), Us(71)), Us(100), Us(110));  // host wait 40
  const DeviceTime device = AnalyzeIdleTime(b.Build()).device;
  EXPECT_EQ(device.span_ns, Us(100));
  EXPECT_EQ(device.compute_ns, Us(45));
  EXPECT_EQ(device.communication_ns, Us(10));
  EXPECT_EQ(device.compute_ns + device.communication_ns + device.idle.total(),
            device.span_ns);
  EXPECT_EQ(BoundSentence(device),
            "50.0 % GPU-bound, 40.0 % CPU-bound, 10.0 % communication-bound");
}

TEST(IdleTimeTest, LongestGapsSayWhatEndedThem) {
  const IdleTimeReport report =
      AnalyzeIdleTime(ThreeGaps().Build(), {.longest_gaps = 2});
  ASSERT_EQ(report.longest.size(), 2u);
  EXPECT_EQ(report.longest[0].ns(), Us(60));
  EXPECT_EQ(report.longest[0].idle_class, IdleClass::kHostWait);
  EXPECT_EQ(report.longest[0].kernel, "c<float>");
  EXPECT_EQ(report.longest[0].path, "forward/qkv");
  EXPECT_EQ(report.longest[1].ns(), Us(50));
  EXPECT_EQ(report.longest[1].idle_class, IdleClass::kOther);
}

TEST(IdleTimeTest, LaunchStatistics) {
  TraceBuilder b = ThreeGaps();
  // One call launches a whole graph: these would count it twice.
  b.Call("cudaGraphLaunch", 50, Us(380), Us(390));
  for (int i = 0; i < 2; ++i) {
    const int kernel = b.Kernel("g", 50, Us(400 + i), Us(401 + i));
    b.trace().activities[kernel].graph_node = 1;
  }
  const LaunchStatistics launches = AnalyzeIdleTime(b.Build()).launches;
  EXPECT_EQ(launches.launches, 4);
  EXPECT_EQ(launches.shorter_than_launch, 1);  // d, 2 us of 3
  EXPECT_DOUBLE_EQ(launches.max_delay_us, 94);
  EXPECT_DOUBLE_EQ(launches.mean_delay_us, (6 + 94 + 5 + 57) / 4.0);
  EXPECT_EQ(launches.min_queue, 0);
  EXPECT_EQ(launches.max_queue, 1);  // a finds b launched
  EXPECT_DOUBLE_EQ(launches.mean_queue, 0.25);
}

TEST(IdleTimeTest, EmptyTraces) {
  const IdleTimeReport report = AnalyzeIdleTime({});
  EXPECT_TRUE(report.streams.empty());
  EXPECT_EQ(report.launches.launches, 0);
  EXPECT_EQ(BoundSentence(report.device),
            "0.0 % GPU-bound, 0.0 % CPU-bound, 0.0 % communication-bound");
  EXPECT_FALSE(FormatIdleTime(report).empty());
}

TEST(IdleTimeTest, TablesAndJson) {
  TraceBuilder b = ThreeGaps();
  b.Kernel(std::string(200, 'k'), b.Launch(Us(400), Us(401)), Us(500), Us(501));
  const IdleTimeReport report = AnalyzeIdleTime(b.Build());
  const std::string text = FormatIdleTime(report);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(text, HasSubstr("forward/qkv: c<float>"));
  EXPECT_THAT(text, HasSubstr("5 launches, 1 of them longer"));
  const nlohmann::ordered_json json = IdleTimeToJson(report);
  EXPECT_EQ(json["streams"][0]["stream"], 7);
  EXPECT_DOUBLE_EQ(json["streams"][0]["other_ms"], 0.05);
  EXPECT_DOUBLE_EQ(json["device"]["host_wait_ms"], 0.06 + 0.148);
  EXPECT_EQ(json["longest_gaps"][1]["class"], "host wait");
  EXPECT_EQ(json["launches"]["count"], 5);
}

}  // namespace
}  // namespace tessera::testing
