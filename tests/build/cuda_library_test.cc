#include <vector>

#include "gtest/gtest.h"
#include "tests/build/vector_add.h"

namespace tessera {
namespace {

// cudaErrorInsufficientDriver and cudaErrorNoDevice.
constexpr int kNoDriver = 35;
constexpr int kNoDevice = 100;

TEST(CudaLibraryTest, HostCodeOfACuFileLinksAndRuns) {
  EXPECT_STREQ(CudaErrorText(0), "no error");
}

// 1000 is not a multiple of the block size.
TEST(GpuCudaLibraryTest, KernelRuns) {
  const std::vector<float> a(1000, 1.5f);
  const std::vector<float> b(1000, 2.0f);
  std::vector<float> sums(1000);
  const int code = VectorAddOnGpu(a.data(), b.data(), sums.data(), 1000);
  if (code == kNoDriver || code == kNoDevice) {
    GTEST_SKIP() << "needs a CUDA GPU";
  }
  ASSERT_EQ(code, 0) << CudaErrorText(code);
  EXPECT_EQ(sums, std::vector<float>(1000, 3.5f));
}

}  // namespace
}  // namespace tessera
