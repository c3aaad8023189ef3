#include "framework/observe/nvtx_observer.h"

#include <memory>

#include "framework/base/phase_observer.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(NvtxObserverTest, IsThereInCudaBuildsOnly) {
  const std::unique_ptr<PhaseObserver> observer = CreateNvtxObserver();
#ifdef TESSERA_NVTX
  ASSERT_NE(observer, nullptr);
#else
  EXPECT_EQ(observer, nullptr);
#endif
  // Without a profiler attached, or without an observer, nothing happens.
  const PhaseScope step(observer.get(), "step_0");
  const PhaseScope forward(observer.get(), "forward");
}

}  // namespace
}  // namespace tessera
