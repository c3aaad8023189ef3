#include "framework/dist/gpu_progress.h"

#include <memory>

#include "ATen/ATen.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/device.h"
#include "framework/dist/progress.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// Five steps of a graph with two communications, and one after it; the first
// step records the graph.
TEST(GpuProgressTest, AGraphCountsAtEachLaunch) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const c10::Device device(c10::kCUDA, 0);
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const at::Tensor x = at::zeros({1 << 24}, at::kCUDA);
  Progress progress;
  progress.CountOn(MakeGpuWriter(device));
  const auto now = [&] {
    x.sum().item<float>();  // waits for the device
    return progress.Now();
  };
  const auto graph = MakeCudaGraph(device);
  for (int64_t step = 1; step <= 5; ++step) {
    const int64_t before = 3 * (step - 1);
    progress.SetStep(step);
    EXPECT_EQ(now().step, step);
    EXPECT_EQ(now().begun, before);
    EXPECT_EQ(now().ended, before);
    EXPECT_EQ(now().ended_name, step == 1 ? "" : "after");
    if (step == 1) {
      const absl::Status captured = graph->Capture([&]() -> absl::Status {
        for (const char* name : {"a sum", "a gathering"}) {
          progress.Begin(name);
          x.add_(1);
          progress.End();
        }
        return absl::OkStatus();
      });
      ASSERT_TRUE(captured.ok()) << captured;
      EXPECT_EQ(now().begun, 0) << "recorded, not done";
    }
    const absl::Status launched = graph->Launch();
    ASSERT_TRUE(launched.ok()) << launched;
    EXPECT_EQ(now().begun, before + 2);
    EXPECT_EQ(now().ended, before + 2);
    EXPECT_EQ(now().ended_name, "a gathering");
    progress.Begin("after");
    EXPECT_EQ(now().begun, before + 3);
    EXPECT_EQ(now().ended, before + 2);
    EXPECT_EQ(now().begun_name, "after");
    progress.End();
    EXPECT_EQ(now().ended, before + 3);
  }
  EXPECT_EQ(x[0].item<float>(), 10);
}

}  // namespace
}  // namespace tessera
