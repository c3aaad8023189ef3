// A session takes the memory that was planned, also if it evaluates.

#include <ATen/Context.h>

#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/evaluation.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = 1 << 20;

// execution.mode, the steps from one evaluation to the next, and a field of the
// optimizer. A graph is recorded in the third step.
class GpuPlannedMemoryTest
    : public testing::TestWithParam<std::tuple<const char*, int, const char*>> {
};

std::string NameOf(
    const testing::TestParamInfo<std::tuple<const char*, int, const char*>>&
        info) {
  return absl::StrCat(std::get<0>(info.param), "_EvaluatesEvery",
                      std::get<1>(info.param), "_", info.index);
}

TEST_P(GpuPlannedMemoryTest, CoversEvaluations) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  const auto& [mode, every, optimizer] = GetParam();
  // A chunk of logits takes 125 MiB, far more than the allowance below.
  std::vector<std::string> sets = {"model.vocab_size=32000",
                                   "training.eval_batches=3",
                                   absl::StrCat("execution.mode=", mode)};
  if (*optimizer != '\0') {
    sets.push_back(absl::StrCat("optimizer.", optimizer));
  }
  const RunConfig config = GpuSizedConfig(sets);
  const c10::Device device(c10::kCUDA, 0);
  EmptyCache(device);
  const MemoryUse before = CurrentMemory(device);
  ResetPeakMemory(device);
  const auto session = Session::Create(config, {});
  ASSERT_TRUE(session.ok()) << session.status();
  TrainStep& step = (*session)->step();
  const BatchLoader* const validation = (*session)->validation_loader();
  ASSERT_NE(validation, nullptr);
  for (int64_t done = 1; done <= 6; ++done) {
    Train(**session, step, done - 1, 1);
    if (done % every != 0) continue;
    const bool averages = (*session)->state().optimizer->ema() != nullptr;
    if (averages) {
      ASSERT_TRUE(step.ExchangeEma().ok());
    }
    const auto loss = Evaluate(step, *validation, (*session)->group(),
                               3 * validation->global_batch());
    ASSERT_TRUE(loss.ok()) << loss.status();
    if (averages) {
      ASSERT_TRUE(step.ExchangeEma().ok());
    }
  }
  // As the diagnosis of a loss that is not finite does.
  const auto batch = (*session)->train_loader().Load(0);
  ASSERT_TRUE(batch.ok());
  ASSERT_TRUE(step.ComputeGradients(*batch).ok());
  const MemoryUse after = CurrentMemory(device);
  const MemoryReport& planned = (*session)->plan().memory.report;
  const int64_t allocated = after.peak_allocated - before.allocated;
  const int64_t reserved = after.peak_reserved - before.reserved;
  SCOPED_TRACE(absl::StrCat("allocated ", allocated, ", planned ",
                            planned.allocated(), "; reserved ", reserved,
                            ", planned ", planned.reserved()));
  EXPECT_LE(allocated, planned.allocated() + 8 * kMiB);
  EXPECT_LE(reserved, planned.reserved() + 24 * kMiB);
  // Workspaces of earlier tests may have been given back meanwhile.
  EXPECT_GE(allocated, planned.allocated() - 100 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Modes, GpuPlannedMemoryTest,
                         testing::Combine(testing::Values("EAGER", "GRAPH"),
                                          testing::Values(1, 2, 3, 5),
                                          testing::Values("")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(
    Optimizers, GpuPlannedMemoryTest,
    testing::Combine(testing::Values("EAGER", "GRAPH"), testing::Values(2),
                     testing::Values("muon.ns_steps=5", "ema.decay=0.9")),
    NameOf);

}  // namespace
}  // namespace tessera
