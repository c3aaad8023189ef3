#include "trainers/generation/next_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/attention_backends/allocation_meter.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

// Programs have 64 and 70 tokens.
constexpr int64_t kContext = 70;

struct Case {
  std::vector<std::string> sets;
  double tolerance = 1e-4;
};

std::vector<Case> Cases() {
  const std::string bf16 = "precision.mode=BF16";
  return {{{}},
          {{"execution.mode=EAGER"}},
          {{"model.num_heads=4", "model.num_kv_heads=2"}},
          {{"model.rope_layout=HALVED", "model.qk_norm=HEAD"}},
          {{"model.qk_norm=PROJECTION", "model.tied_head=true"}},
          {{"model.attention_window=[{tokens: 5}, {}]"}},
          {{"model.attention_sinks=true", "model.logit_soft_cap=2",
            "model.attention_soft_cap=0.5", "model.num_heads=4",
            "model.num_kv_heads=1"}},
          {{"model.norm_placement=AFTER", "model.head_dim=24",
            "model.rope_layout=HALVED",
            "model.rope_scaling={factor: 8 original_context_length: 16}"}},
          {{bf16}, 0.1},
          {{bf16, "model.rope_layout=HALVED", "model.head_dim=24",
            "model.num_heads=4", "model.num_kv_heads=2"},
           0.1},
          {{"precision.mode=BF16_PURE"}, 0.1}};
}

std::vector<float> Logits(NextTokenModel& model,
                          const std::vector<int64_t>& tokens) {
  const auto logits = model.LogitsAfter({tokens});
  EXPECT_TRUE(logits.ok()) << logits.status();
  return logits.value_or(std::vector<float>(model.vocab()));
}

double LargestDifference(const std::vector<float>& a,
                         const std::vector<float>& b) {
  return (at::tensor(a) - at::tensor(b)).abs().max().item<double>();
}

int64_t MostLikely(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

class NextTokenTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> sets, const std::string& device) {
    sets.push_back("model.context_length=70");
    sets.push_back("training.device=" + device);
    session_ = Toy("configs/tiny_cpu.pbtxt", sets);
    Train(*session_, 5);
    at::manual_seed(3);
    const at::Tensor ids = at::randint(0, Fresh()->vocab(), {kContext + 3});
    text_.assign(ids.to(at::kLong).const_data_ptr<int64_t>(),
                 ids.to(at::kLong).const_data_ptr<int64_t>() + ids.numel());
  }

  std::unique_ptr<NextTokenModel> Fresh() {
    return std::make_unique<NextTokenModel>(session_->plan(),
                                            *session_->state().parameters);
  }
  std::vector<int64_t> First(int64_t count) const {
    return {text_.begin(), text_.begin() + count};
  }

  // From a prompt of seven tokens to beyond the context.
  void ExpectSameFromTheCache(double tolerance) {
    const auto cached = Fresh();
    for (int64_t count = 7; count <= kContext + 3; ++count) {
      SCOPED_TRACE(count);
      const std::vector<float> plain = Logits(*Fresh(), First(count));
      const std::vector<float> logits = Logits(*cached, First(count));
      EXPECT_LE(LargestDifference(logits, plain), tolerance);
      if (tolerance <= 1e-4) {  // FP32: also the same tokens
        EXPECT_EQ(MostLikely(logits), MostLikely(plain));
      }
    }
  }

  // Expects each of `texts` to have the same logits in a batch as alone.
  void ExpectThoseOfEach(NextTokenModel& model,
                         const NextTokenModel::Texts& texts, double tolerance) {
    const auto logits = model.LogitsAfter(texts);
    ASSERT_TRUE(logits.ok()) << logits.status();
    const int64_t vocab = model.vocab();
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto row = logits->begin() + static_cast<int64_t>(i) * vocab;
      EXPECT_LE(
          LargestDifference({row, row + vocab}, Logits(*Fresh(), texts[i])),
          tolerance)
          << "text " << i << " of " << texts[i].size() << " tokens";
    }
  }
  void ExpectSameInABatch(double tolerance) {
    NextTokenModel::Texts texts = {First(9), First(9), First(9)};
    const auto change = [&](int64_t& token) {
      token = (token + 1) % Fresh()->vocab();
    };
    change(texts[1][2]);
    change(texts[2][8]);
    const auto model = Fresh();
    for (int64_t count = 9; count < kContext + 3; ++count) {
      ExpectThoseOfEach(*model, texts, tolerance);
      for (std::vector<int64_t>& text : texts) text.push_back(text_[count]);
    }
    texts = {First(10), First(10)};
    ExpectThoseOfEach(*model, texts, tolerance);
    // Only one of them is extended.
    for (std::vector<int64_t>& text : texts) text.push_back(text_[10]);
    change(texts[1][2]);
    ExpectThoseOfEach(*model, texts, tolerance);
  }

  std::unique_ptr<Session> session_;
  std::vector<int64_t> text_;
};

TEST_F(NextTokenTest, TheCacheDoesNotChangeTheLogits) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.sets.empty() ? "" : c.sets[0]);
    Start(c.sets, "CPU");
    ExpectSameFromTheCache(c.tolerance);
  }
}

TEST_F(NextTokenTest, OnlyTheNextTokenIsComputed) {
  Start({}, "CPU");
  const auto model = Fresh();
  const std::vector<float> before = Logits(*model, First(9));
  // Keys and values of the tokens before are those of the weights before.
  session_->state().parameters->weights().master.mul_(1.5);
  const std::vector<float> fresh = Logits(*Fresh(), First(10));
  EXPECT_GT(LargestDifference(Logits(*model, First(10)), fresh), 1e-3);
}

TEST_F(NextTokenTest, CachesThatHaveGrownAreFreed) {
  constexpr int64_t kTokens = 640;  // ten lengths
  const auto session = Toy("configs/tiny_cpu.pbtxt",
                           {"model.context_length=640", "model.num_heads=4",
                            "model.d_model=256", "training.batch_size=1"});
  NextTokenModel model(session->plan(), *session->state().parameters);
  tessera::testing::AllocationMeter meter(at::kCPU);
  const int64_t before = meter.current();
  std::vector<int64_t> tokens = {3, 1};
  while (tokens.size() < kTokens) {
    tokens.push_back(static_cast<int64_t>(tokens.size()) % model.vocab());
    Logits(model, tokens);
  }
  // Keys and values of two layers; beside them only a token's activations.
  constexpr int64_t kCaches = 2 * kTokens * 2 * 256 * sizeof(float);
  EXPECT_LT(meter.current() - before, 2 * kCaches);
}

TEST_F(NextTokenTest, AnotherTextIsComputedAnew) {
  Start({}, "CPU");
  const auto model = Fresh();
  Logits(*model, First(20));
  std::vector<int64_t> other = First(21);
  other[4] = (other[4] + 1) % model->vocab();
  for (const std::vector<int64_t>& text :
       {other, First(12), First(14), First(14), First(15)}) {
    EXPECT_LE(LargestDifference(Logits(*model, text), Logits(*Fresh(), text)),
              1e-4)
        << text.size();
  }
}

TEST_F(NextTokenTest, TextsOfABatchDoNotSeeEachOther) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.sets.empty() ? "" : c.sets[0]);
    Start(c.sets, "CPU");
    ExpectSameInABatch(c.tolerance);
  }
}

// The weights as a program that only generates keeps them.
TEST_F(NextTokenTest, ReadOnlyWeightsGiveTheSameLogits) {
  Start({"precision.mode=BF16"}, "CPU");
  const RunPlan plan =
      PlanGeneration(session_->plan().config, {.tokens = kContext}).value();
  const auto weights = MakeParameters(plan).value();
  const ParameterStore& trained = *session_->state().parameters;
  for (const ParameterSlice& slice : trained.slices()) {
    const at::Tensor values = at::empty({slice.numel});
    trained.Read(slice, 0, values);
    for (const ParameterSlice& to : weights->slices()) {
      if (to.name == slice.name) weights->Write(to, 0, values);
    }
  }
  NextTokenModel model(plan, *weights);
  EXPECT_EQ(Logits(model, First(20)), Logits(*Fresh(), First(20)));
}

using GpuNextTokenTest = NextTokenTest;

TEST_F(GpuNextTokenTest, TheCacheDoesNotChangeTheLogits) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.sets.empty() ? "" : c.sets[0]);
    Start(c.sets, "CUDA");
    ExpectSameFromTheCache(c.tolerance);
    ExpectSameInABatch(c.tolerance);
  }
}

// Several blocks divide the keys of a head, and the caches grow.
TEST_F(GpuNextTokenTest, ALongTextHasTheSameLogits) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const std::vector<Case> cases = {
      {{"model.num_heads=16", "model.num_kv_heads=2"}},
      {{"model.attention_window=[{tokens: 700}, {}]"}},
      {{"model.attention_sinks=true", "model.attention_soft_cap=0.5"}},
      {{"precision.mode=BF16", "model.num_heads=8", "model.num_kv_heads=1"},
       0.1}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.sets[0]);
    std::vector<std::string> sets = {
        "training.device=CUDA", "model.context_length=1500",
        "model.d_model=256", "training.batch_size=1"};
    sets.insert(sets.end(), c.sets.begin(), c.sets.end());
    const auto session = Toy("configs/tiny_cpu.pbtxt", sets);
    const auto fresh = [&] {
      return std::make_unique<NextTokenModel>(session->plan(),
                                              *session->state().parameters);
    };
    const auto model = fresh();
    std::vector<int64_t> tokens(1015);
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int64_t>(i * i) % model->vocab();
    }
    while (tokens.size() < 1030) {
      EXPECT_LE(
          LargestDifference(Logits(*model, tokens), Logits(*fresh(), tokens)),
          c.tolerance)
          << tokens.size();
      tokens.push_back(static_cast<int64_t>(tokens.size()) % model->vocab());
    }
  }
}

}  // namespace
}  // namespace tessera
