#include "framework/ops/cross_entropy/cross_entropy.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "gtest/gtest.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/framework/ops/ops_as_functions.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/gradcheck.h"

namespace tessera::testing {
namespace {

using Inputs = std::vector<at::Tensor>;

class CrossEntropyTest : public DeviceTest {};

// Each option, and combinations. Caps that hardly change logits of variance 1,
// and that saturate most of them.
constexpr CrossEntropyOptions kOptions[] = {
    {},
    {.soft_cap = 30},
    {.soft_cap = 0.25},
    {.objective = {.label_smoothing = 0.1}},
    {.soft_cap = 2, .objective = {.label_smoothing = 0.3}},
    {.objective = {.z_loss = 1e-4}},
    {.soft_cap = 2, .objective = {.label_smoothing = 0.3, .z_loss = 0.1}},
};

::testing::Message Describe(const CrossEntropyOptions& options) {
  return ::testing::Message()
         << "soft cap " << options.soft_cap << ", label smoothing "
         << options.objective.label_smoothing << ", z-loss "
         << options.objective.z_loss;
}

at::Tensor Targets(int64_t n, int64_t vocab, at::Device device) {
  at::Tensor targets = at::arange(n).mul(7919).remainder(vocab);
  if (n > 1) targets[n / 2].fill_(kIgnoredTarget);
  return targets.to(device);
}

// The op and plain LibTorch as functions of logits and targets.
OpFn Loss(const CrossEntropyOptions& options = {}) {
  return
      [=](const Inputs& in) { return CrossEntropySum(in[0], in[1], options); };
}
OpFn PlainLoss(const CrossEntropyOptions& options = {}) {
  return [=](const Inputs& in) {
    return PlainCrossEntropySum(in[0], in[1], options);
  };
}

TEST_P(CrossEntropyTest, GradientMatchesCentralDifferences) {
  for (const CrossEntropyOptions& options : kOptions) {
    SCOPED_TRACE(Describe(options));
    EXPECT_TRUE(
        Gradcheck({.fn = Loss(options),
                   .inputs = {Randn({2, 3, 8}, 3, at::kDouble, device()),
                              Targets(6, 8, device()).view({2, 3})}}));
  }
}

void ExpectAgreesWithPlainAutograd(int64_t n, int64_t vocab, at::Device device,
                                   const CrossEntropyOptions& options) {
  for (const at::ScalarType dtype : FloatDtypes(device)) {
    SCOPED_TRACE(Describe(options)
                 << ": " << n << " x " << vocab << ", " << dtype);
    const Inputs inputs = {Randn({n, vocab}, 3, dtype, device),
                           Targets(n, vocab, device)};
    const Evaluation got = Evaluate(Loss(options), inputs);
    EXPECT_EQ(got.y.scalar_type(),
              dtype == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_EQ(got.grads[0].scalar_type(), dtype);
    const Evaluation oracle = EvaluateInFp64(PlainLoss(options), inputs);
    ExpectWithinBudget(got.grads[0],
                       Evaluate(PlainLoss(options), inputs).grads[0],
                       oracle.grads[0]);
    // A single number can be accurate by chance, so it is not a baseline.
    EXPECT_NEAR(got.y.item<double>() / oracle.y.item<double>(), 1,
                dtype == at::kDouble ? 1e-12 : 1e-6);
  }
}

TEST_P(CrossEntropyTest, AgreesWithPlainAutograd) {
  for (const auto& [n, vocab] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {127, 40}, {1000, 96}, {127, 1000}, {8, 50257}}) {
    ExpectAgreesWithPlainAutograd(n, vocab, device(), {});
  }
}

TEST_P(CrossEntropyTest, OptionsAgreeWithPlainAutograd) {
  for (const CrossEntropyOptions& options : kOptions) {
    for (const auto& [n, vocab] : std::vector<std::pair<int64_t, int64_t>>{
             {65, 127}, {127, 1000}, {8, 50257}}) {
      ExpectAgreesWithPlainAutograd(n, vocab, device(), options);
    }
  }
}

// On a GPU a row has more blocks than a grid's second dimension.
TEST_P(CrossEntropyTest, TakesTheLargestVocabularies) {
  constexpr int64_t kVocab = 65'535 * 256 + 1;  // odd: not read in packs
  const at::Tensor logits = at::zeros({1, kVocab}, at::device(device()));
  const at::Tensor targets = at::full({1}, kVocab - 1, at::device(device()));
  const Evaluation got = Evaluate(Loss(), {logits, targets});
  EXPECT_NEAR(got.y.item<double>(), std::log(kVocab), 1e-4);
  const at::Tensor gradient = got.grads[0].to(at::kDouble)[0];
  EXPECT_NEAR(gradient[kVocab - 1].item<double>(), 1.0 / kVocab - 1, 1e-6);
  const at::Tensor others = gradient.narrow(0, 0, kVocab - 1) * kVocab;
  EXPECT_TRUE(at::allclose(others, at::ones_like(others), 1e-4));
}

// The plain computation rounds nothing here, so it is not a baseline.
TEST_P(CrossEntropyTest, AVocabularyOfOneWordAgreesWithPlainAutograd) {
  const at::Tensor targets = Targets(100, 1, device());
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    const at::Tensor logits = Randn({100, 1}, 3, dtype, device());
    for (const CrossEntropyOptions& options : kOptions) {
      SCOPED_TRACE(Describe(options) << ", " << dtype);
      const Evaluation got = Evaluate(Loss(options), {logits, targets});
      const Evaluation oracle =
          EvaluateInFp64(PlainLoss(options), {logits, targets});
      EXPECT_NEAR(got.y.item<double>(), oracle.y.item<double>(), 1e-6);
      EXPECT_TRUE(at::allclose(got.grads[0].to(at::kDouble), oracle.grads[0],
                               /*rtol=*/0.01, /*atol=*/1e-6));
    }
  }
}

// FP32 on every device, whose kernels other tests call only for other dtypes.
TEST_P(CrossEntropyTest, TheReferenceAgreesWithPlainAutograd) {
  const at::Tensor logits = Randn({65, 127}, 3, at::kFloat, device());
  const at::Tensor targets = Targets(65, 127, device());
  for (const CrossEntropyOptions& options : kOptions) {
    SCOPED_TRACE(Describe(options));
    const CrossEntropyRows rows = {logits, targets, options};
    const at::Tensor loss = at::empty({}, logits.options());
    const at::Tensor lse = at::empty({65}, logits.options());
    const at::Tensor dlogits = at::full_like(logits, NAN);
    CrossEntropyKernels::kReference.forward(rows, loss, lse);
    CrossEntropyKernels::kReference.backward(rows, at::ones_like(loss), lse,
                                             dlogits);
    const Evaluation oracle =
        EvaluateInFp64(PlainLoss(options), {logits, targets});
    const Evaluation naive = Evaluate(PlainLoss(options), {logits, targets});
    ExpectWithinBudget(dlogits, naive.grads[0], oracle.grads[0]);
    EXPECT_NEAR(loss.item<double>() / oracle.y.item<double>(), 1, 1e-6);
  }
}

TEST_P(CrossEntropyTest, ASaturatedSoftCapGivesNoGradientAndNoNan) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor targets = at::tensor({0, 1}, at::kLong).to(device());
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    const at::Tensor logits =
        at::tensor({kInfinity, -kInfinity, 6e4, -6e4}, at::kDouble)
            .to(device(), dtype)
            .view({2, 2});
    // Also a cap so small that logits divided by it overflow.
    for (const float cap : {0.5f, 1e-37f}) {
      const Evaluation got =
          Evaluate(Loss({.soft_cap = cap}), {logits, targets});
      // Logits of +-cap: the first row has the likelier target.
      const double expected =
          std::log1p(std::exp(-2 * cap)) + std::log1p(std::exp(2 * cap));
      EXPECT_NEAR(got.y.item<double>(), expected, 1e-6);
      EXPECT_TRUE((got.grads[0] == 0).all().item<bool>()) << got.grads[0];
    }
  }
}

TEST_P(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    const at::Tensor logits =
        at::tensor({200.0, -200.0, 0.0, -200.0, 200.0, 200.0}, at::kDouble)
            .to(device(), dtype)
            .view({2, 3});
    const at::Tensor targets = at::tensor({1, 2}, at::kLong).to(device());
    const Evaluation got = Evaluate(Loss(), {logits, targets});
    EXPECT_NEAR(got.y.item<double>(), 400 + std::log(2.0), 1e-4);
    const at::Tensor expected =
        at::tensor({1.0, -1.0, 0.0, 0.0, 0.5, -0.5}, at::kDouble).view({2, 3});
    EXPECT_TRUE(at::allclose(got.grads[0].to(at::kCPU, at::kDouble), expected,
                             /*rtol=*/0, /*atol=*/1e-6));
  }
}

// Wherever it is: first or last in what a thread reads, and beside words that
// are excluded. 96 logits are read in packs on a GPU, 97 are not.
TEST_P(CrossEntropyTest, ANanLogitGivesANanLoss) {
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    for (const int64_t vocab : {1, 2, 96, 97, 4096, 4099}) {
      const at::Tensor targets =
          at::full({1}, vocab / 2, at::device(device()).dtype(at::kLong));
      for (const bool excluded : {false, true}) {
        const at::Tensor logits =
            excluded ? at::full({1, vocab}, -INFINITY, at::device(device()))
                           .to(dtype)
                     : Randn({1, vocab}, 3, dtype, device());
        logits[0][vocab / 2].fill_(1);
        for (const int64_t place :
             {int64_t{0}, int64_t{1}, vocab / 2, vocab - 2, vocab - 1}) {
          if (place < 0 || place >= vocab) continue;
          for (const CrossEntropyOptions& options : kOptions) {
            if (excluded && options.objective.label_smoothing > 0) continue;
            SCOPED_TRACE(Describe(options)
                         << ", " << dtype << ": logit " << place << " of "
                         << vocab << (excluded ? ", beside -infinity" : ""));
            const at::Tensor bad = logits.clone();
            bad[0][place].fill_(NAN);
            EXPECT_TRUE(std::isfinite(
                Evaluate(Loss(options), {logits, targets}).y.item<double>()));
            const Evaluation got = Evaluate(Loss(options), {bad, targets});
            EXPECT_TRUE(std::isnan(got.y.item<double>()));
            EXPECT_TRUE(got.grads[0].isnan().any().item<bool>());
          }
        }
      }
    }
  }
}

TEST_P(CrossEntropyTest, OnlyIgnoredTargetsGiveZero) {
  const at::Tensor logits = Randn({4, 8}, 3, at::kFloat, device());
  const at::Tensor targets =
      at::full({4}, kIgnoredTarget, at::device(device()).dtype(at::kLong));
  const Evaluation got = Evaluate(Loss(), {logits, targets});
  EXPECT_EQ(got.y.item<double>(), 0);
  EXPECT_TRUE((got.grads[0] == 0).all().item<bool>());
}

TEST_P(CrossEntropyTest, GradientScalesWithTheLoss) {
  const at::Tensor targets = Targets(5, 8, device());
  EXPECT_TRUE(Gradcheck({.fn =
                             [&](const Inputs& in) {
                               return CrossEntropySum(in[0], targets) * 0.25;
                             },
                         .inputs = {Randn({5, 8}, 3, at::kDouble, device())}}));
}

// Each chunk has its own targets, with a different one ignored.
TEST_P(CrossEntropyTest, ChunksGiveTheSameBits) {
  constexpr int64_t kRows = 7, kVocab = 11;
  const at::Tensor targets =
      at::tensor(
          at::IntArrayRef({3, 0, kIgnoredTarget, 10, 7, 5, kIgnoredTarget}),
          at::kLong)
          .to(device());
  const at::Tensor dloss =
      at::full({}, 0.5, at::device(device()).dtype(at::kDouble));
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    const at::Tensor logits = Randn({kRows, kVocab}, 3, dtype, device());
    const auto evaluate = [&](int64_t chunk_elements) {
      const at::ScalarType wide =
          dtype == at::kDouble ? at::kDouble : at::kFloat;
      const at::Tensor loss = at::empty({}, logits.options().dtype(wide));
      const at::Tensor lse = at::empty({kRows}, loss.options());
      const CrossEntropyRows rows = {logits, targets};
      reference::CrossEntropyForward(rows, loss, lse, chunk_elements);
      const at::Tensor dlogits = at::full_like(logits, NAN);
      reference::CrossEntropyBackward(rows, dloss.to(wide), lse, dlogits,
                                      chunk_elements);
      return Evaluation{loss, {dlogits}};
    };
    const Evaluation whole = evaluate(reference::kCrossEntropyChunk);
    const Evaluation oracle = EvaluateInFp64(PlainLoss(), {logits, targets});
    EXPECT_NEAR(whole.y.item<double>(), oracle.y.item<double>(), 1e-5);
    const double roundoff = dtype == at::kBFloat16 ? 0x1p-9 : 0x1p-12;
    EXPECT_TRUE(at::allclose(whole.grads[0].to(at::kDouble),
                             oracle.grads[0] * 0.5, roundoff, roundoff));
    // One, two and three rows at a time, and a chunk smaller than a row.
    for (const int64_t chunk :
         {kVocab, 2 * kVocab, 4 * kVocab - 1, int64_t{1}}) {
      SCOPED_TRACE(::testing::Message() << dtype << ", chunks of " << chunk);
      const Evaluation got = evaluate(chunk);
      EXPECT_TRUE(BitEqual(got.y, whole.y));
      EXPECT_TRUE(BitEqual(got.grads[0], whole.grads[0]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CrossEntropyTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, CrossEntropyTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
