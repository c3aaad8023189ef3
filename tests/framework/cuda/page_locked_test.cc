#include "framework/cuda/page_locked.h"

#include <ATen/ATen.h>

#include <atomic>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(LargePageLockedTest, IsMemoryOfTheSizeAndDtypeAskedFor) {
  const std::atomic<bool> stop = false;
  const auto memory = LargePageLocked(100'001, at::kShort, at::kCPU, stop);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->scalar_type(), at::kShort);
  EXPECT_EQ(memory->sizes(), at::IntArrayRef({100'001}));
  memory->fill_(7);
  EXPECT_EQ(memory->sum().item<int64_t>(), 700'007);
  EXPECT_EQ(LargePageLocked(0, at::kFloat, at::kCPU, stop)->numel(), 0);
}

TEST(LargePageLockedTest, SaysThatThereIsNotEnough) {
  const std::atomic<bool> stop = false;
  EXPECT_EQ(
      LargePageLocked(int64_t{1} << 50, at::kFloat, at::kCPU, stop).status(),
      absl::ResourceExhaustedError(
          "cannot map 4503599627370496 bytes: Cannot allocate memory"));
}

TEST(LargePageLockedTest, CanBeStopped) {
  const std::atomic<bool> stop = true;
  EXPECT_EQ(LargePageLocked(100, at::kFloat, at::kCPU, stop).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(GpuLargePageLockedTest, AGpuCopiesToAllOfIt) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const std::atomic<bool> stop = false;
  const at::Tensor from =
      at::arange((int64_t{3} << 24) + 5, at::device(at::kCUDA));
  const at::Device device = from.device();
  for (int i = 0; i < 2; ++i) {  // the addresses may be the same again
    const auto to =
        LargePageLocked(from.numel(), from.scalar_type(), device, stop);
    ASSERT_TRUE(to.ok()) << to.status();
    EXPECT_TRUE(to->is_pinned());
    to->copy_(from, /*non_blocking=*/true);
    EXPECT_TRUE(at::equal(from.cpu(), *to));
  }
}

}  // namespace
}  // namespace tessera
