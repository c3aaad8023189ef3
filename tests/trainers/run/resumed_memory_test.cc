// A resumed run takes the memory of one that was never interrupted.

#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/phase_observer.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

// The most memory that steps took; not what happens between them.
class StepPeaks : public PhaseObserver {
 public:
  explicit StepPeaks(c10::Device device) : device_(device) {}

  void BeginStep(int64_t /*step*/) noexcept override {
    ResetPeakMemory(device_);
  }
  void EndStep() noexcept override {
    const MemoryUse use = CurrentMemory(device_);
    ++steps;
    allocated = std::max(allocated, use.peak_allocated);
    reserved = std::max(reserved, use.peak_reserved);
  }
  void Begin(absl::string_view /*segment*/) noexcept override {}
  void End() noexcept override {}

  int steps = 0;
  int64_t allocated = 0, reserved = 0;

 private:
  const c10::Device device_;
};

class GpuResumedMemoryTest : public testing::TestWithParam<const char*> {
 protected:
  // Trains up to step 6 with a checkpoint after step 3.
  static absl::Status Run(const std::string& folder, const std::string& resume,
                          StepPeaks* peaks) {
    EmptyCache(c10::kCUDA);
    const RunConfig config =
        GpuSizedConfig({"training.steps=6", "checkpoint.every_steps=3",
                        absl::StrCat("execution.mode=", GetParam())});
    ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                     Session::Create(config, {.phases = peaks}));
    ASSIGN_OR_RETURN(RunFolder opened,
                     OpenRunFolder(folder, resume, /*writes=*/true));
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(std::move(session), std::move(opened), {}));
    return trainer->Run();
  }
};

TEST_P(GpuResumedMemoryTest, PeaksAreThoseOfAFreshRun) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/resumed_memory_", getpid());
  ASSERT_TRUE(RemoveTree(folder).ok());
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  const c10::Device device(c10::kCUDA, 0);
  {
    // Libraries take their memory.
    StepPeaks peaks(device);
    const absl::Status status = Run(folder + "/first", "never", &peaks);
    ASSERT_TRUE(status.ok()) << status;
  }
  StepPeaks fresh(device), resumed(device);
  absl::Status status = Run(folder + "/fresh", "never", &fresh);
  ASSERT_TRUE(status.ok()) << status;
  status = Run(folder + "/resumed", folder + "/fresh/checkpoints/step_00000003",
               &resumed);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(fresh.steps, 6);
  EXPECT_EQ(resumed.steps, 3);
  EXPECT_EQ(resumed.allocated, fresh.allocated);
  EXPECT_EQ(resumed.reserved, fresh.reserved);
}

// A graph is recorded in the third step of either run.
INSTANTIATE_TEST_SUITE_P(Modes, GpuResumedMemoryTest,
                         testing::Values("EAGER", "GRAPH"));

}  // namespace
}  // namespace tessera
