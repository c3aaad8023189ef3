// A whole model trains equally with every attention backend, and resumes bit
// for bit with FLASH_CUDA.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "gtest/gtest.h"
#include "tests/testing/weights.h"
#include "tests/trainers/toy_session.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

constexpr int64_t kSteps = 50;
constexpr double kRate = 2e-3;

// Two layers of two heads of 64, on 8 sequences of 130 tokens.
std::vector<std::string> OnGpu(const std::string& backend,
                               const std::string& precision) {
  return {"model.d_model=128",
          "model.d_ff=256",
          "model.context_length=130",
          "training.batch_size=8",
          "training.device=CUDA",
          "training.deterministic=false",
          "data.shuffle=true",
          "data.synthetic.successors=3",
          "attention.backend=" + backend,
          "precision.mode=" + precision};
}

std::vector<double> Losses(const std::string& backend,
                           const std::string& precision) {
  const auto session = Toy("configs/tiny_gpu.pbtxt", OnGpu(backend, precision));
  return Train(*session, session->step(), 0, kSteps, kRate);
}

double LargestDistance(const std::vector<double>& a,
                       const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

// Why the backend cannot train the model; empty if it can.
std::string Refusal(const std::string& backend, const std::string& precision) {
  const RunConfig config =
      ToyConfig("configs/tiny_gpu.pbtxt", OnGpu(backend, precision));
  return std::string(PlanRun(config, {}).status().message());
}

using BackendAndPrecision = std::pair<std::string, std::string>;

class GpuAttentionInTraining
    : public testing::TestWithParam<BackendAndPrecision> {};

TEST_P(GpuAttentionInTraining, FollowsNaive) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const auto& [backend, precision] = GetParam();
  const std::string refusal = Refusal(backend, precision);
  if (!refusal.empty()) GTEST_SKIP() << refusal;
  const std::vector<double> exact = Losses("NAIVE", "FP32");
  ASSERT_LT(exact.back(), exact.front() - 1);
  const std::vector<double> losses = Losses(backend, precision);
  // The noise of a precision is its error with NAIVE; in FP32 it is that of
  // another order of additions.
  const double noise =
      precision == "FP32"
          ? 1e-3
          : 2 * LargestDistance(Losses("NAIVE", precision), exact) + 1e-3;
  EXPECT_LE(LargestDistance(losses, exact), noise);
}

std::vector<BackendAndPrecision> All() {
  std::vector<BackendAndPrecision> all;
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const char* precision : {"FP32", "BF16", "FP16"}) {
      all.emplace_back(std::string(backend->name()), precision);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuAttentionInTraining, testing::ValuesIn(All()),
    [](const testing::TestParamInfo<BackendAndPrecision>& info) {
      return absl::StrCat(info.param.first, "_", info.param.second);
    });

TEST(GpuFlashCudaInTraining, ResumesBitForBit) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  for (const std::string precision : {"FP32", "BF16", "FP16"}) {
    std::vector<std::string> sets = OnGpu("FLASH_CUDA", precision);
    sets.emplace_back("training.deterministic=true");
    const auto straight = Toy("configs/tiny_gpu.pbtxt", sets);
    Train(*straight, 10);
    const auto resumed = Toy("configs/tiny_gpu.pbtxt", sets);
    ResumeFrom(*straight, 10, *resumed);
    EXPECT_EQ(Train(*resumed, resumed->step(), 10, 10),
              Train(*straight, straight->step(), 10, 10))
        << precision;
    EXPECT_TRUE(at::equal(WeightsOf(*resumed->state().parameters),
                          WeightsOf(*straight->state().parameters)))
        << precision;
  }
}

}  // namespace
}  // namespace tessera
