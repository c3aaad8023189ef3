#include "framework/cuda/cuda_graph.h"

#include <memory>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

// LibTorch accepts no recording into memory whose graphs are all gone.
TEST(GpuCudaGraphTest, RecordsIntoMemoryOfGraphsThatAreGone) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const c10::Device device(c10::kCUDA, 0);
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const at::Tensor x = at::zeros({8}, at::kCUDA);
  const auto record = [&]() -> absl::Status {
    x.add_(x + 1);
    return absl::OkStatus();
  };
  ASSERT_TRUE(record().ok());
  x.zero_();
  auto graph = MakeCudaGraph(device);
  const auto beside = MakeCudaGraphBeside(*graph);
  for (int recording = 0; recording < 3; ++recording) {
    const absl::Status captured = graph->Capture(record);
    ASSERT_TRUE(captured.ok()) << captured;
    ASSERT_TRUE(graph->Launch().ok());
  }
  EXPECT_EQ(x[0].item<float>(), 7);
  graph.reset();
  const absl::Status captured = beside->Capture(record);
  ASSERT_TRUE(captured.ok()) << captured;
  ASSERT_TRUE(beside->Launch().ok());
  EXPECT_EQ(x[0].item<float>(), 15);
}

// A recording that fails leaves nothing behind in LibTorch: neither its
// allocators nor its generator believe that it is still under way.
TEST(GpuCudaGraphTest, RecordsAgainAfterAFailure) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const c10::Device device(c10::kCUDA, 0);
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const at::Tensor x = at::zeros({8}, at::kCUDA);
  const auto waits = [&] {
    return StatusFromTorch([&] {
      x.add_(at::rand({8}, at::kCUDA));
      x.sum().item<float>();
    });
  };
  ASSERT_TRUE(waits().ok());
  x.zero_().add_(0);
  const auto graph = MakeCudaGraph(device);
  for (int time = 0; time < 2; ++time) {
    const absl::Status failed = graph->Capture(waits);
    EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(failed.message()),
                AllOf(HasSubstr("cannot be recorded as a CUDA graph: "),
                      HasSubstr("when stream is capturing"),
                      HasSubstr("execution.mode: EAGER")));
    EXPECT_FALSE(graph->captured());
    EXPECT_LT(at::rand({8}, at::kCUDA).max().item<float>(), 1);
    const absl::Status captured = graph->Capture([&]() -> absl::Status {
      x.add_(1);
      return absl::OkStatus();
    });
    ASSERT_TRUE(captured.ok()) << captured;
    ASSERT_TRUE(graph->Launch().ok());
    EXPECT_EQ(x[0].item<float>(), time + 1);
  }
}

}  // namespace
}  // namespace tessera
