// Rope, SwiGlu, AddResidual and CrossEntropySum: ops without parameters.

#include <cmath>
#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "framework/ops/rope/rope.h"
#include "gtest/gtest.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/framework/ops/ops_as_functions.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/gradcheck.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

using Inputs = std::vector<at::Tensor>;

class RopeTest : public DeviceTest {};
class SwiGluTest : public DeviceTest {};
class ResidualTest : public DeviceTest {};
class CrossEntropyTest : public DeviceTest {};

constexpr RopeLayout kLayouts[] = {RopeLayout::kInterleaved,
                                   RopeLayout::kHalved};

// Multiplication of complex numbers by exp(i angle), as in RoFormer.
at::Tensor ComplexRope(const at::Tensor& qkv, const RopeTable& table,
                       int64_t rotated_heads) {
  const int64_t half = qkv.size(3) / 2;
  const bool halved = table.layout == RopeLayout::kHalved;
  const at::Tensor heads = qkv.narrow(2, 0, rotated_heads);
  const at::Tensor re =
      halved ? heads.narrow(3, 0, half) : heads.slice(3, 0, std::nullopt, 2);
  const at::Tensor im =
      halved ? heads.narrow(3, half, half) : heads.slice(3, 1, std::nullopt, 2);
  const auto rows = [&](const at::Tensor& t) {
    return t.narrow(0, 0, qkv.size(1)).unsqueeze(1).to(qkv.scalar_type());
  };
  const at::Tensor z = at::complex(re.contiguous(), im.contiguous()) *
                       at::complex(rows(table.cos), rows(table.sin));
  const at::Tensor rotated = halved ? at::cat({at::real(z), at::imag(z)}, 3)
                                    : at::view_as_real(z).flatten(3);
  return at::cat(
      {rotated, qkv.narrow(2, rotated_heads, qkv.size(2) - rotated_heads)}, 2);
}

TEST_P(RopeTest, TableHoldsTheAngles) {
  const RopeTable table =
      RopeTable::Create(100, 8, 1e4, RopeLayout::kInterleaved, device());
  ASSERT_EQ(table.cos.sizes(), (std::vector<int64_t>{100, 4}));
  for (const int64_t position : {0, 1, 99}) {
    for (const int64_t i : {0, 1, 3}) {
      const double angle = position * std::pow(1e4, -2.0 * i / 8);
      EXPECT_NEAR(table.cos[position][i].item<double>(), std::cos(angle), 1e-7);
      EXPECT_NEAR(table.sin[position][i].item<double>(), std::sin(angle), 1e-7);
    }
  }
}

TEST_P(RopeTest, GradientMatchesCentralDifferences) {
  for (const RopeLayout layout : kLayouts) {
    const RopeTable table = RopeTable::Create(7, 8, 1e4, layout, device());
    const OpFn fn = [&](const Inputs& in) {
      return Rope(in[0], table, /*rotated_heads=*/2);
    };
    EXPECT_TRUE(Gradcheck(
        {.fn = fn, .inputs = {Randn({2, 5, 3, 8}, 3, at::kDouble, device())}}));
  }
}

TEST_P(RopeTest, AgreesWithComplexNumbers) {
  struct Shape {
    int64_t b, s, heads, rotated, d;
  };
  for (const Shape& s : {Shape{1, 1, 3, 2, 8}, Shape{2, 127, 6, 4, 80},
                         Shape{1, 1000, 4, 3, 128}, Shape{3, 5, 5, 5, 40},
                         Shape{2, 9, 3, 2, 6}}) {
    for (const RopeLayout layout : kLayouts) {
      for (const at::ScalarType dtype : FloatDtypes(device())) {
        SCOPED_TRACE(::testing::Message()
                     << s.s << " positions, D " << s.d << ", " << dtype
                     << (layout == RopeLayout::kHalved ? ", halved" : ""));
        const RopeTable table =
            RopeTable::Create(s.s + 3, s.d, 1e4, layout, device());
        const at::Tensor qkv =
            Randn({s.b, s.s, s.heads, s.d}, 3, dtype, device());
        const OpFn op = [&](const Inputs& in) {
          return Rope(in[0], table, s.rotated);
        };
        const OpFn oracle = [&](const Inputs& in) {
          return ComplexRope(in[0], table, s.rotated);
        };
        // LibTorch has no complex BF16, so the baseline rounds once at the end.
        const OpFn naive = [&](const Inputs& in) {
          const at::ScalarType wide =
              dtype == at::kDouble ? at::kDouble : at::kFloat;
          return ComplexRope(in[0].to(wide), table, s.rotated).to(dtype);
        };
        const Evaluation got = Evaluate(op, {qkv});
        ExpectWithinBudget(got, Evaluate(naive, {qkv}),
                           EvaluateInFp64(oracle, {qkv}));
        const int64_t rest = s.heads - s.rotated;
        EXPECT_TRUE(BitEqual(got.y.narrow(2, s.rotated, rest),
                             qkv.narrow(2, s.rotated, rest)));
      }
    }
  }
}

TEST_P(RopeTest, DoesNotModifyASharedGradient) {
  const RopeTable table =
      RopeTable::Create(4, 8, 1e4, RopeLayout::kHalved, device());
  const at::Tensor qkv =
      Randn({2, 4, 3, 8}, 3, at::kDouble, device()).requires_grad_();
  const at::Tensor dy = Randn({2, 4, 3, 8}, 4, at::kDouble, device());
  const at::Tensor before = dy.clone();
  torch::autograd::backward({Rope(qkv, table, 2)}, {dy});
  EXPECT_TRUE(BitEqual(dy, before));
}

at::Tensor PlainSwiGlu(const Inputs& in) {
  const std::vector<at::Tensor> ab = in[0].chunk(2, -1);
  return at::silu(ab[0]) * ab[1];
}

TEST_P(SwiGluTest, GradientMatchesCentralDifferences) {
  EXPECT_TRUE(
      Gradcheck({.fn = [](const Inputs& in) { return SwiGlu(in[0]); },
                 .inputs = {Randn({2, 3, 16}, 3, at::kDouble, device())}}));
}

TEST_P(SwiGluTest, AgreesWithPlainAutograd) {
  for (const auto& [rows, f] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {127, 40}, {1000, 128}, {5, 1000}, {3, 7}}) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << f << ", " << dtype);
      const Inputs inputs = {Randn({rows, 2 * f}, 3, dtype, device())};
      ExpectWithinBudget(
          Evaluate([](const Inputs& in) { return SwiGlu(in[0]); }, inputs),
          Evaluate(PlainSwiGlu, inputs), EvaluateInFp64(PlainSwiGlu, inputs));
    }
  }
}

TEST_P(SwiGluTest, IsFiniteForLargeInputs) {
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    const at::Tensor ab = at::tensor({-300.0, 300.0, 2.0, 2.0}, at::kDouble)
                              .to(device(), dtype)
                              .view({1, 4});
    const Evaluation got =
        Evaluate([](const Inputs& in) { return SwiGlu(in[0]); }, {ab});
    EXPECT_NEAR(got.y[0][0].item<double>(), 0, 1e-30);
    EXPECT_EQ(got.y[0][1].item<double>(), 600);
    EXPECT_TRUE(at::isfinite(got.grads[0]).all().item<bool>());
  }
}

TEST_P(ResidualTest, GradientsMatchCentralDifferences) {
  EXPECT_TRUE(Gradcheck(
      {.fn = [](const Inputs& in) { return AddResidual(in[0], in[1]); },
       .inputs = {Randn({3, 8}, 3, at::kDouble, device()),
                  Randn({3, 8}, 4, at::kDouble, device())}}));
}

TEST_P(ResidualTest, AddsANarrowBranchToAWideStream) {
  const at::Tensor x = Randn({3, 8}, 3, at::kFloat, device());
  const at::Tensor delta = Randn({3, 8}, 4, at::kBFloat16, device());
  const Evaluation got = Evaluate(
      [](const Inputs& in) { return AddResidual(in[0], in[1]); }, {x, delta});
  EXPECT_TRUE(BitEqual(got.y, x + delta.to(at::kFloat)));
  EXPECT_EQ(got.grads[0].scalar_type(), at::kFloat);
  EXPECT_TRUE(BitEqual(got.grads[1], got.grads[0].to(at::kBFloat16)));
}

at::Tensor Targets(int64_t n, int64_t vocab, at::Device device) {
  at::Tensor targets = at::arange(n).mul(7919).remainder(vocab);
  if (n > 1) targets[n / 2].fill_(kIgnoredTarget);
  return targets.to(device);
}

at::Tensor PlainCrossEntropy(const Inputs& in) {
  return at::nll_loss_nd(at::log_softmax(in[0], -1), in[1], std::nullopt,
                         at::Reduction::Sum, kIgnoredTarget);
}

at::Tensor Loss(const Inputs& in) { return CrossEntropySum(in[0], in[1]); }

TEST_P(CrossEntropyTest, GradientMatchesCentralDifferences) {
  EXPECT_TRUE(Gradcheck({.fn = Loss,
                         .inputs = {Randn({2, 3, 8}, 3, at::kDouble, device()),
                                    Targets(6, 8, device()).view({2, 3})}}));
}

TEST_P(CrossEntropyTest, AgreesWithPlainAutograd) {
  for (const auto& [n, vocab] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {127, 40}, {1000, 96}, {127, 1000}, {8, 50257}}) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      SCOPED_TRACE(::testing::Message()
                   << n << " x " << vocab << ", " << dtype);
      const Inputs inputs = {Randn({n, vocab}, 3, dtype, device()),
                             Targets(n, vocab, device())};
      const Evaluation got = Evaluate(Loss, inputs);
      EXPECT_EQ(got.y.scalar_type(),
                dtype == at::kDouble ? at::kDouble : at::kFloat);
      EXPECT_EQ(got.grads[0].scalar_type(), dtype);
      // As in autocast: the loss is computed in FP32 for all logits.
      const OpFn naive = [](const Inputs& in) {
        return PlainCrossEntropy(
            {in[0].scalar_type() == at::kDouble ? in[0] : in[0].to(at::kFloat),
             in[1]});
      };
      const Evaluation oracle = EvaluateInFp64(PlainCrossEntropy, inputs);
      ExpectWithinBudget(got.grads[0], Evaluate(naive, inputs).grads[0],
                         oracle.grads[0]);
      // A single number can be accurate by chance, so it is not a baseline.
      EXPECT_NEAR(got.y.item<double>() / oracle.y.item<double>(), 1,
                  dtype == at::kDouble ? 1e-12 : 1e-6);
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
    const Evaluation got = Evaluate(Loss, {logits, targets});
    EXPECT_NEAR(got.y.item<double>(), 400 + std::log(2.0), 1e-4);
    const at::Tensor expected =
        at::tensor({1.0, -1.0, 0.0, 0.0, 0.5, -0.5}, at::kDouble).view({2, 3});
    EXPECT_TRUE(at::allclose(got.grads[0].to(at::kCPU, at::kDouble), expected,
                             /*rtol=*/0, /*atol=*/1e-6));
  }
}

TEST_P(CrossEntropyTest, OnlyIgnoredTargetsGiveZero) {
  const at::Tensor logits = Randn({4, 8}, 3, at::kFloat, device());
  const at::Tensor targets =
      at::full({4}, kIgnoredTarget, at::device(device()).dtype(at::kLong));
  const Evaluation got = Evaluate(Loss, {logits, targets});
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
      reference::CrossEntropyForward(logits, targets, loss, lse,
                                     chunk_elements);
      const at::Tensor dlogits = at::full_like(logits, NAN);
      reference::CrossEntropyBackward(dloss.to(wide), logits, targets, lse,
                                      dlogits, chunk_elements);
      return Evaluation{loss, {dlogits}};
    };
    const Evaluation whole = evaluate(reference::kCrossEntropyChunk);
    const Evaluation oracle =
        EvaluateInFp64(PlainCrossEntropy, {logits, targets});
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

INSTANTIATE_TEST_SUITE_P(Cpu, RopeTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, RopeTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, SwiGluTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, SwiGluTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, ResidualTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, ResidualTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, CrossEntropyTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, CrossEntropyTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
