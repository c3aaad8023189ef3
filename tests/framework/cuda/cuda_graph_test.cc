#include "framework/cuda/cuda_graph.h"

#include <memory>
#include <utility>

#include "ATen/ATen.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(GpuCudaGraphTest, MomentsWithNothingBetweenThemAreOne) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const c10::Device device(c10::kCUDA, 0);
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const at::Tensor x = at::zeros({1 << 24}, at::kCUDA);
  const auto graph = MakeCudaGraph(device);
  std::shared_ptr<const GraphMoment> before, begin, end;
  const auto record = [&]() -> absl::Status {
    before = RecordMoment(device, std::move(end));
    begin = RecordMoment(device, before);
    x.add_(1);
    end = RecordMoment(device, begin);
    return absl::OkStatus();
  };
  for (int recording = 0; recording < 2; ++recording) {
    // A moment of an earlier recording is none of this one's.
    const GraphMoment* const earlier = end.get();
    const absl::Status captured = graph->Capture(record);
    ASSERT_TRUE(captured.ok()) << captured;
    EXPECT_NE(before.get(), earlier);
    EXPECT_EQ(before, begin);
    EXPECT_NE(begin, end);
    ASSERT_TRUE(graph->Launch().ok());
    EXPECT_GT(end->MsSince(*begin), 0.01);
    EXPECT_EQ(begin->MsSince(*before), 0);
  }
  EXPECT_EQ(x[0].item<float>(), 2);
}

}  // namespace
}  // namespace tessera
