#include "framework/observe/nvtx_observer.h"

#include <memory>

#include "framework/base/phase_observer.h"
#include "framework/cuda/cuda_build.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(NvtxObserverTest, DoesNothingWithoutAProfiler) {
  if constexpr (kCudaBuild) {
    const std::unique_ptr<PhaseObserver> observer = CreateNvtxObserver();
    const StepScope step(observer.get(), 1);
    const PhaseScope forward(observer.get(), "forward");
  } else {
    GTEST_SKIP() << "built without CUDA";
  }
}

}  // namespace
}  // namespace tessera
