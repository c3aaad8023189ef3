#include "trainers/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attention_backends/backend_table.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run_plan.h"

namespace tessera {
namespace {

// No multiple of anything: the model sees 64, 128 and 130 tokens.
constexpr int64_t kContext = 130;
constexpr int64_t kTokens = 140;

std::vector<std::string> OnDevice(const std::string& device,
                                  const std::string& backend,
                                  const std::string& precision) {
  return {"model.d_model=128",
          "model.context_length=130",
          "training.device=" + device,
          "training.deterministic=false",
          "attention.backend=" + backend,
          "precision.mode=" + precision};
}

std::unique_ptr<Session> Trained(const std::vector<std::string>& sets) {
  auto session = Toy("configs/tiny_cpu.pbtxt", sets);
  Train(*session, 20);
  return session;
}

std::vector<int64_t> MostLikely(const TransformerLm& model) {
  std::vector<int64_t> tokens = {3};
  const absl::Status status =
      Sample(model, tokens, {.temperature = 0, .max_tokens = kTokens},
             [&](int64_t token) { tokens.push_back(token); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens.size(), 1 + kTokens);
  return tokens;
}

// By how much `model` holds another token for more likely than one of
// `tokens`, at most, in its logits for exactly the tokens before it.
double LargestLoss(const TransformerLm& model,
                   const std::vector<int64_t>& tokens) {
  const at::NoGradGuard no_grad;
  double largest = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const std::vector<int64_t> seen(
        tokens.begin() + (i > kContext ? i - kContext : 0), tokens.begin() + i);
    const at::Tensor ids = at::tensor(seen).unsqueeze(0).to(model.device());
    const at::Tensor logits =
        model.NextTokenLogits(ids, ids.size(1)).squeeze(0).to(at::kFloat);
    largest =
        std::max(largest, (logits.max() - logits[tokens[i]]).item<double>());
  }
  return largest;
}

TEST(SamplingTest, DrawsFromWhatTheModelSaysOfTheTokensSoFar) {
  const auto session = Trained(OnDevice("CPU", "NAIVE", "FP32"));
  const TransformerLm& model = session->model();
  const std::vector<int64_t> tokens = MostLikely(model);
  EXPECT_LE(LargestLoss(model, tokens), 1e-4);
  // Another token would have been noticed.
  std::vector<int64_t> other = tokens;
  other[100] = (other[100] + 1) % 61;
  EXPECT_GT(LargestLoss(model, other), 1e-2);
}

class GpuSampling : public testing::TestWithParam<std::string> {};

TEST_P(GpuSampling, EveryBackendSamples) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const auto sets = OnDevice("CUDA", GetParam(), "BF16");
  const absl::Status refusal =
      PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", sets), {}).status();
  if (!refusal.ok()) GTEST_SKIP() << refusal.message();
  const auto session = Trained(sets);
  const auto naive =
      Toy("configs/tiny_cpu.pbtxt", OnDevice("CUDA", "NAIVE", "BF16"));
  naive->state().parameters->master().copy_(
      session->state().parameters->master());
  naive->state().parameters->RefreshShadow();
  EXPECT_LE(LargestLoss(naive->model(), MostLikely(session->model())), 0.1);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const AttentionBackend* backend : AttentionBackends()) {
    names.emplace_back(backend->name());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, GpuSampling, testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera
