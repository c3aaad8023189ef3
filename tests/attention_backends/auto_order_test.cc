#include "attention_backends/auto_order.h"

#include <cstdint>

#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/picky_backend.h"

namespace tessera {
namespace {

using testing::SmallProblem;

TEST(AutoOrderFor, FollowsTheMeasurements) {
  const struct {
    int capability;
    at::ScalarType dtype;
    int64_t d, t;
    MaskSpec mask;
    const char* first;
  } cases[] = {
      {90, at::kBFloat16, 128, 4096, MaskSpec::Full(), "FLASH_CUDA"},
      {90, at::kBFloat16, 136, 4096, MaskSpec::Causal(), "FLASH_CUDA"},
      {90, at::kBFloat16, 136, 4096, MaskSpec::Full(), "TORCH_FLASH"},
      {90, at::kBFloat16, 160, 8192, MaskSpec::Full(), "FLASH_CUDA"},
      {90, at::kBFloat16, 192, 2048, MaskSpec::Full(), "FLASH_CUDA"},
      {90, at::kBFloat16, 192, 4096, MaskSpec::Causal(), "TORCH_FLASH"},
      {90, at::kBFloat16, 224, 8192, MaskSpec::Causal(), "FLASH_CUDA"},
      {90, at::kBFloat16, 256, 2048, MaskSpec::Causal(), "FLASH_CUDA"},
      {90, at::kBFloat16, 256, 4096, MaskSpec::Causal(), "TORCH_FLASH"},
      {90, at::kBFloat16, 256, 1024, MaskSpec::Full(), "FLASH_CUDA"},
      {90, at::kBFloat16, 256, 2048, MaskSpec::Full(), "TORCH_FLASH"},
      {90, at::kHalf, 256, 8192, MaskSpec::Causal(), "TORCH_FLASH"},
      {90, at::kFloat, 64, 4096, MaskSpec::Full(), "FLASH_CUDA"},
      {90, at::kFloat, 128, 128, MaskSpec::Full(), "FLASH_CUDA"},
      {90, at::kFloat, 128, 1024, MaskSpec::Causal(), "FLASH_CUDA"},
      {90, at::kFloat, 128, 512, MaskSpec::Full(), "TORCH_EFFICIENT"},
      {90, at::kFloat, 128, 2048, MaskSpec::Causal(), "TORCH_EFFICIENT"},
      {90, at::kFloat, 256, 128, MaskSpec::Causal(), "FLASH_CUDA"},
      {90, at::kFloat, 256, 128, MaskSpec::Full(), "TORCH_EFFICIENT"},
      {80, at::kBFloat16, 64, 1024, MaskSpec::Causal(), "TORCH_FLASH"},
      {100, at::kFloat, 64, 1024, MaskSpec::Causal(), "TORCH_EFFICIENT"}};
  for (const auto& c : cases) {
    AttentionProblem problem = SmallProblem();
    problem.cuda = true;
    problem.compute_capability = c.capability;
    problem.dtype = c.dtype;
    problem.d = c.d;
    problem.s = problem.t = c.t;
    problem.mask = c.mask;
    const AutoOrder order = AutoOrderFor(problem, AttentionBackends());
    EXPECT_EQ(order.backends.size(), AttentionBackends().size());
    EXPECT_EQ(order.backends[0]->name(), c.first);
    EXPECT_EQ(order.reason.empty(),
              order.backends[0] == AttentionBackends()[0]);
  }
}

AttentionProblem Fp32OnHopper() {
  AttentionProblem problem = SmallProblem();
  problem.dtype = at::kFloat;
  problem.cuda = true;
  problem.compute_capability = 90;
  return problem;
}

// In TF32, FLASH_CUDA's products run on tensor cores up to head dim 128.
TEST(AutoOrderFor, DependsOnThePrecisionOfFp32Products) {
  AttentionProblem problem = Fp32OnHopper();
  problem.b = problem.h = problem.g = 16;
  problem.s = problem.t = 2048;
  problem.d = 128;
  const auto first = [&] {
    return AutoOrderFor(problem, AttentionBackends()).backends[0]->name();
  };
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
  problem.tf32 = true;
  EXPECT_EQ(first(), "FLASH_CUDA");
  problem.d = 136;
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
}

// TORCH_EFFICIENT's deterministic backward runs one CUDA block per head.
TEST(AutoOrderFor, DeterministicTorchEfficientNeedsManyHeads) {
  AttentionProblem problem = Fp32OnHopper();
  problem.d = 128;
  problem.s = problem.t = 8192;
  problem.b = 2;
  problem.h = problem.g = 16;
  const auto first = [&] {
    return AutoOrderFor(problem, AttentionBackends()).backends[0]->name();
  };
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
  problem.deterministic = true;
  EXPECT_EQ(first(), "FLASH_CUDA");
  problem.b = 8;
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
  problem.b = 2;
  problem.needs_grad = false;
  EXPECT_EQ(first(), "TORCH_EFFICIENT");
}

}  // namespace
}  // namespace tessera
