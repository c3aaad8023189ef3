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

// Whatever is rehearsed or recorded first.
TEST(GpuCudaGraphTest, RehearsalsShareTheMemoryOfGraphs) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const c10::Device device(c10::kCUDA, 0);
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const at::Tensor x = at::zeros({1 << 24}, at::kCUDA);
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const auto reserved = [&] { return CurrentMemory(device).reserved; };
  // Gives back the workspaces of earlier tests.
  ASSERT_TRUE(MakeCudaGraph(device)->Rehearse(absl::OkStatus).ok());
  EmptyCache(device);
  const int64_t before = reserved();
  {
    auto first = MakeCudaGraph(device);
    const auto second = MakeCudaGraphBeside(*first);
    const auto issue = [&]() -> absl::Status {
      x.add_(at::ones_like(x));
      return absl::OkStatus();
    };
    const auto expect = [&](const absl::Status& status, float sum) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(x[-1].item<float>(), sum);
      EmptyCache(device);
      // A graph that was launched keeps the generator's state, a small segment.
      EXPECT_GE(reserved(), before + bytes);
      EXPECT_LE(reserved(), before + bytes + (2 << 20));
    };
    expect(second->Rehearse(issue), 1);
    expect(first->Rehearse(issue), 2);
    expect(first->Capture(issue), 2);
    expect(first->Launch(), 3);
    expect(second->Rehearse(issue), 4);
    expect(second->Capture(issue), 4);
    expect(second->Launch(), 5);
    expect(first->Launch(), 6);
    // The memory outlives the graph that was recorded first.
    first.reset();
    expect(second->Launch(), 7);
    const absl::Status failed = second->Rehearse(
        []() -> absl::Status { return absl::DataLossError("no batch"); });
    EXPECT_EQ(failed, absl::DataLossError("no batch"));
    expect(second->Rehearse(issue), 8);
  }
  EmptyCache(device);
  EXPECT_EQ(reserved(), before);
}

}  // namespace
}  // namespace tessera
