// Rope, SwiGlu and AddResidual: ops without parameters.

#include <cmath>
#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
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
  const RopeTable table = RopeTable::Create(100, 8, RopeOptions(), device());
  ASSERT_EQ(table.cos.sizes(), (std::vector<int64_t>{100, 4}));
  for (const int64_t position : {0, 1, 99}) {
    for (const int64_t i : {0, 1, 3}) {
      const double angle = position * std::pow(1e4, -2.0 * i / 8);
      EXPECT_NEAR(table.cos[position][i].item<double>(), std::cos(angle), 1e-7);
      EXPECT_NEAR(table.sin[position][i].item<double>(), std::sin(angle), 1e-7);
    }
  }
}

// Llama 3.1's, with theta and D chosen such that there are frequencies above,
// between and below the limits.
TEST_P(RopeTest, ScalingLowersLowFrequencies) {
  const RopeScaling scaling = {.factor = 8, .original_context = 64};
  const RopeTable table =
      RopeTable::Create(2, 16, {.theta = 100, .scaling = scaling}, device());
  int kept = 0, divided = 0;
  for (int i = 0; i < 8; ++i) {
    const double f = std::pow(100, -i / 8.0), wavelength = 2 * M_PI / f;
    double expected = f;
    if (wavelength > 64 / 1.0) {
      expected = f / 8;
      ++divided;
    } else if (wavelength > 64 / 4.0) {
      const double smooth = (64 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * f / 8 + smooth * f;
    } else {
      ++kept;
    }
    EXPECT_NEAR(table.sin[1][i].item<double>(), std::sin(expected), 1e-7) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_LT(kept + divided, 8);
}

TEST_P(RopeTest, GradientMatchesCentralDifferences) {
  for (const RopeLayout layout : kLayouts) {
    const RopeTable table =
        RopeTable::Create(7, 8, {.layout = layout}, device());
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
            RopeTable::Create(s.s + 3, s.d, {.layout = layout}, device());
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

// A token turns by the row of its position, forward and backward.
TEST_P(RopeTest, ReadsThePositionsOfTokens) {
  const at::Tensor positions =
      at::tensor({0, 1, 2, 0, 0, 1, 6}, at::kLong).view({1, 7}).to(device());
  for (const RopeLayout layout : kLayouts) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      RopeTable table = RopeTable::Create(7, 40, {.layout = layout}, device());
      RopeTable rows = table;
      rows.cos = table.cos.index({positions[0]});
      rows.sin = table.sin.index({positions[0]});
      table.token_positions = positions;
      const at::Tensor qkv = Randn({1, 7, 3, 40}, 3, dtype, device());
      const auto with = [](const RopeTable& t) {
        return [&t](const Inputs& in) { return Rope(in[0], t, 2); };
      };
      const Evaluation got = Evaluate(with(table), {qkv});
      const Evaluation expected = Evaluate(with(rows), {qkv});
      EXPECT_TRUE(BitEqual(got.y, expected.y));
      EXPECT_TRUE(BitEqual(got.grads[0], expected.grads[0]));
    }
  }
}

TEST_P(RopeTest, DoesNotModifyASharedGradient) {
  const RopeTable table =
      RopeTable::Create(4, 8, {.layout = RopeLayout::kHalved}, device());
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

INSTANTIATE_TEST_SUITE_P(Cpu, RopeTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, RopeTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, SwiGluTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, SwiGluTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, ResidualTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, ResidualTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
