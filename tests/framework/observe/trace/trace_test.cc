#include "framework/observe/trace/trace.h"

#include "gtest/gtest.h"
#include "tests/framework/observe/trace/trace_builder.h"

namespace tessera::testing {
namespace {

using Level = HostRange::Level;

constexpr char kLaunch[] = "cudaLaunchKernel";

TEST(TraceTest, KernelsBelongToTheInnermostRangeOfTheirCall) {
  TraceBuilder b;
  const int step = b.Step("step_7", 0, 100);
  const int forward = b.Range(Level::kPhase, "forward", step, 10, 60);
  const int qkv = b.Range(Level::kOp, "qkv", forward, 20, 30);
  const int sdpa = b.Range(Level::kOp, "sdpa", forward, 30, 50);
  const int softmax = b.Range(Level::kPhase, "softmax", sdpa, 35, 40);
  // Neither calls nor activities stand in order, as CUPTI hands them out.
  b.Call(kLaunch, 6, 70, 71);
  b.Call(kLaunch, 1, 12, 13);
  b.Call(kLaunch, 2, 22, 24);
  b.Call("cuLaunchKernel", 2, 23, 24);  // within the call before
  b.Call(kLaunch, 3, 36, 37);
  b.Call(kLaunch, 4, 45, 46);
  b.Call(kLaunch, 5, 55, 56);
  b.Call(kLaunch, 7, 36, 37, /*thread=*/2);
  b.Call(kLaunch, 8, 101, 102);
  for (uint32_t i = 9; i > 0; --i) b.Kernel("kernel", i, 1000 + i, 1001 + i);
  const Trace trace = b.Build();
  const int expected[] = {forward, qkv, softmax, sdpa, forward,
                          step,    -1,  -1,      -1};
  for (uint32_t i = 0; i < 9; ++i) {
    EXPECT_EQ(trace.activities[i].correlation, i + 1);
    EXPECT_EQ(trace.activities[i].range, expected[i]) << i + 1;
  }
  EXPECT_EQ(trace.calls.front().correlation, 1u);
  EXPECT_EQ(trace.calls.front().range, forward);
  for (const HostCall& call : trace.calls) {
    EXPECT_EQ(call.range == -1, call.thread == 2 || call.correlation == 8);
  }
  EXPECT_EQ(trace.calls.back().correlation, 8u);
}

TEST(TraceTest, PathsLeaveOutTheStep) {
  TraceBuilder b;
  const int step = b.Step("step_7", 0, 100);
  const int forward = b.Range(Level::kPhase, "forward", step, 10, 60);
  const int qkv = b.Range(Level::kOp, "qkv", forward, 20, 30);
  EXPECT_EQ(b.trace().PathOf(qkv), "forward/qkv");
  EXPECT_EQ(b.trace().PathOf(step), "");
  EXPECT_EQ(b.trace().PathOf(-1), "");
}

TEST(TraceTest, NamesAreKeptOnce) {
  Trace trace;
  NameTable names(&trace.names);
  EXPECT_EQ(names.IndexOf("a"), 0);
  EXPECT_EQ(names.IndexOf("b"), 1);
  EXPECT_EQ(names.IndexOf("a"), 0);
  EXPECT_EQ(trace.names.size(), 2u);
}

}  // namespace
}  // namespace tessera::testing
