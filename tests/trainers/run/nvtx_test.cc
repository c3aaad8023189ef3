// Receives training's NVTX ranges as a profiler does.

#include <ATen/ATen.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/observe/nvtx_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nvtx3/nvToolsExt.h"
#include "tests/testing/recording_observer.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

// The ranges received since the test began.
RecordingObserver& Received() {
  static auto* received = new RecordingObserver;
  return *received;
}

int Push(const char* message) {
  Received().Begin(message);
  return Received().depth() - 1;
}

int Pop() {
  Received().End();
  return Received().depth();
}

// Registers this program as the NVTX tool (nvtx3/nvtxDetail/nvtxInit.h).
int Attach(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(
      export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions,
                                         &size)) {
    return 0;
  }
  *functions[NVTX_CBID_CORE_RangePushA] =
      reinterpret_cast<NvtxFunctionPointer>(Push);
  *functions[NVTX_CBID_CORE_RangePop] =
      reinterpret_cast<NvtxFunctionPointer>(Pop);
  return 1;
}

// Trains seven steps, two of them after the warm-up.
absl::Status TrainOn(const std::string& device, PhaseObserver* phases) {
  const KeepDeterminism keep;
  auto session = Toy("configs/tiny_cpu.pbtxt",
                     {"training.steps=7", "training.sample_tokens_at_end=0",
                      "attention.backend=NAIVE", "execution.mode=EAGER",
                      absl::StrCat("training.device=", device)},
                     {.phases = phases});
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/nvtx_", device, "_", getpid());
  ASSIGN_OR_RETURN(RunFolder run,
                   OpenRunFolder(folder, "never", /*writes=*/true));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      Trainer::Create(std::move(session), std::move(run), TrainerOptions()));
  RETURN_IF_ERROR(trainer->Run());
  trainer.reset();
  return RemoveTree(folder);
}

class NvtxTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "CUDA" && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
    // NVTX reads this at the program's first range if no profiler is attached.
    InitializeInjectionNvtx2_fnptr = Attach;
    Received() = RecordingObserver();
  }
};

TEST_P(NvtxTest, RangesNameThePhasesOfTraining) {
  std::unique_ptr<PhaseObserver> nvtx = CreateNvtxObserver();
  const absl::Status status = TrainOn(GetParam(), nvtx.get());
  ASSERT_TRUE(status.ok()) << status;
  nvtx.reset();  // ends the range around the steps
  std::vector<std::string> expected;
  for (const char* step : {"warmup/step_1", "warmup/step_5",
                           "measurement/step_6", "measurement/step_7"}) {
    for (const char* phase :
         {"forward/block_0/attention/attention/scores",
          "forward/block_0/attention/attention/softmax",
          "forward/block_1/attention/attention/values",
          "forward/block_1/ffn/w13", "backward/block_0/attention/qkv",
          "clip/gradient norm", "optimizer/weights"}) {
      expected.push_back(absl::StrCat(step, "/", phase));
    }
  }
  EXPECT_THAT(Received().paths(), testing::IsSupersetOf(expected));
  EXPECT_EQ(Received().depth(), 0);
}

TEST_P(NvtxTest, NoRangesIfOff) {
  const absl::Status status = TrainOn(GetParam(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Received().paths(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Cpu, NvtxTest, testing::Values("CPU"));
INSTANTIATE_TEST_SUITE_P(Gpu, NvtxTest, testing::Values("CUDA"));

}  // namespace
}  // namespace tessera
