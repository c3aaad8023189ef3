#include "bench/measure/start_up.h"

#include "framework/cuda/device.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kThread = 7;

// A trace of calls on one thread, in milliseconds.
class Calls {
 public:
  Calls() { trace_.thread = kThread; }

  Calls& Add(const char* name, int begin_ms, int end_ms,
             uint32_t correlation = 0, uint32_t thread = kThread) {
    trace_.calls.push_back({.name = names_.IndexOf(name),
                            .begin_ns = begin_ms * int64_t{1'000'000},
                            .end_ns = end_ms * int64_t{1'000'000},
                            .thread = thread,
                            .correlation = correlation});
    return *this;
  }
  Calls& AddKernel(const char* name, uint32_t correlation) {
    trace_.activities.push_back(
        {.name = names_.IndexOf(name), .correlation = correlation});
    return *this;
  }
  // The figures of one part from 0 to 100 ms.
  Json Figures() const {
    return StartUpFigures(trace_, {{"step 1", 0, 100'000'000}})[0];
  }

 private:
  Trace trace_;
  NameTable names_{&trace_.names};
};

TEST(StartUpTest, EachMillisecondIsInOneClass) {
  const Json figures = Calls()
                           .Add("cudaMalloc_v3020", 0, 10)
                           .Add("cuMemAlloc_v2", 1, 9)  // within cudaMalloc
                           .Add("cuLibraryLoadData", 10, 30)
                           .Add("cudaStreamSynchronize_v3020", 40, 45)
                           .Add("cudaMemcpyAsync_v3020", 50, 51)
                           .Add("cudaFree_v3020", 0, 90, 0, /*thread=*/8)
                           .Add("cudaMalloc_v3020", 95, 120)
                           .Figures();
  EXPECT_EQ(figures, (Json{{"part", "step 1"},
                           {"ms", 100.0},
                           {"kernel_loading_ms", 20.0},
                           {"allocation_ms", 15.0},
                           {"graph_ms", 0.0},
                           {"waiting_ms", 5.0},
                           {"launching_ms", 1.0},
                           {"host_ms", 59.0}}));
}

TEST(StartUpTest, AKernelIsLoadedByItsFirstLaunch) {
  const Json figures = Calls()
                           .Add("cudaLaunchKernel_v7000", 0, 20, 1)
                           .Add("cudaLaunchKernel_v7000", 20, 21, 2)
                           .Add("cudaLaunchKernelExC_v11060", 30, 37)
                           .Add("cuLaunchKernelEx", 31, 36, 3)
                           .AddKernel("gemm", 1)
                           .AddKernel("gemm", 2)
                           .AddKernel("softmax", 3)
                           .Figures();
  EXPECT_EQ(figures["kernel_loading_ms"], 27);
  EXPECT_EQ(figures["launching_ms"], 1);
}

TEST(StartUpTest, RecordingAGraphIsTheGraphs) {
  const Json figures = Calls()
                           .Add("cudaStreamBeginCapture_v10000", 10, 11)
                           .Add("cudaLaunchKernel_v7000", 20, 21)
                           .Add("cudaMalloc_v3020", 30, 34)
                           .Add("cudaStreamEndCapture_v10000", 40, 41)
                           .Add("cudaGraphInstantiate_v12000", 50, 60)
                           .Figures();
  EXPECT_EQ(figures["graph_ms"], 31 - 4 + 10);
  EXPECT_EQ(figures["allocation_ms"], 4);
  EXPECT_EQ(figures["launching_ms"], 0);
  EXPECT_EQ(figures["host_ms"], 59);
}

TEST(StartUpTest, PartsAreTimedInOrder) {
  StartUp start_up(HostActivities(/*max_records=*/10));
  ASSERT_TRUE(start_up.Begin().ok());
  for (const char* name : {"session", "step 1"}) {
    ASSERT_TRUE(
        start_up.Do(name, CpuDevice().device, [] { return absl::OkStatus(); })
            .ok());
  }
  const auto rows = start_up.End();
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[1]["part"], "step 1");
  EXPECT_GE((*rows)[1]["ms"], 0);
  EXPECT_EQ((*rows)[1]["host_ms"], (*rows)[1]["ms"]);
}

}  // namespace
}  // namespace tessera
