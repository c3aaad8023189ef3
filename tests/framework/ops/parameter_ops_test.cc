// Linear, RmsNorm and Embedding: the ops with a parameter.

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "gtest/gtest.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/framework/ops/ops_as_functions.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/gradient_state.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

using Inputs = std::vector<at::Tensor>;

constexpr double kEps = 1e-5;

class LinearTest : public DeviceTest {};
class RmsNormTest : public DeviceTest {};
class EmbeddingTest : public DeviceTest {};

ParameterStoreOptions Stored(at::Device device, at::ScalarType compute,
                             at::ScalarType gradient) {
  const bool wide = compute == at::kDouble;
  return {.device = device,
          .weights = {wide ? at::kDouble : at::kFloat, compute},
          .gradient = gradient};
}

at::Tensor PlainRmsNorm(const at::Tensor& x, const at::Tensor& gain) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + kEps).rsqrt() * gain;
}

TEST_P(LinearTest, GradientsMatchCentralDifferences) {
  const OneParameter w = MakeParameter({5, 8}, Fp64(device()));
  EXPECT_TRUE(
      Gradcheck({.fn = [&](const Inputs& in) { return Linear(in[0], *w.p); },
                 .inputs = {Randn({2, 3, 8}, 3, at::kDouble, device())},
                 .store = w.store.get(),
                 .parameters = {w.p}}));
}

TEST_P(LinearTest, AgreesWithPlainAutograd) {
  struct Shape {
    int64_t rows, in, out;
  };
  for (const Shape& s :
       {Shape{1, 8, 40}, Shape{127, 40, 96}, Shape{1000, 80, 128},
        Shape{3, 1000, 8}, Shape{2, 2560, 1000}, Shape{4, 264, 7}}) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.in << " -> "
                                        << s.out << ", " << dtype);
      const OneParameter w =
          MakeParameter({s.out, s.in}, Stored(device(), dtype, dtype));
      const Inputs inputs = {Randn({s.rows, s.in}, 3, dtype, device()),
                             w.p->As(dtype)};
      const OpFn plain = [](const Inputs& in) {
        return at::linear(in[0], in[1]);
      };
      ExpectWithinBudget(
          Evaluate([&](const Inputs& in) { return Linear(in[0], *w.p); },
                   {inputs[0]}, &w),
          Evaluate(plain, inputs), EvaluateInFp64(plain, inputs));
    }
  }
}

TEST_P(LinearTest, WideGradientBufferIsNotRoundedToTheOperands) {
  const OneParameter w =
      MakeParameter({96, 40}, Stored(device(), at::kBFloat16, at::kFloat));
  const at::Tensor x = Randn({127, 40}, 3, at::kBFloat16, device());
  const OpFn op = [&](const Inputs& in) { return Linear(in[0], *w.p); };
  const at::Tensor got = Evaluate(op, {x}, &w).grads[1];
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  // The cotangent of Evaluate(), and the product without rounding.
  const at::Tensor dy = Randn({127, 96}, 2, at::kBFloat16, device());
  const at::Tensor exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
  const at::Tensor naive = at::mm(dy.to(at::kFloat).t(), x.to(at::kFloat));
  EXPECT_TRUE(ErrorBudget::AgainstBaseline(naive, exact).Accepts(got));
}

TEST_P(LinearTest, SecondMicroBatchAddsToTheFirst) {
  for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16}) {
    const OneParameter w =
        MakeParameter({8, 40}, Stored(device(), at::kBFloat16, gradient));
    const at::Tensor x0 = Randn({16, 40}, 3, at::kBFloat16, device());
    const at::Tensor x1 = Randn({16, 40}, 4, at::kBFloat16, device());
    const auto accumulate = [&](const at::Tensor& x) {
      torch::autograd::backward({Linear(x, *w.p).to(at::kFloat).sum()});
    };
    w.p->grad().fill_(1e6);  // the first micro-batch must overwrite it
    BeginGradients(*w.store);
    accumulate(x0);
    accumulate(x1);
    const at::Tensor column_sums =
        (x0.to(at::kDouble).sum(0) + x1.to(at::kDouble).sum(0)).expand({8, 40});
    const double tolerance = gradient == at::kFloat ? 1e-5 : 4e-2;
    EXPECT_TRUE(at::allclose(w.p->grad().to(at::kDouble), column_sums,
                             tolerance, tolerance));
  }
}

TEST_P(LinearTest, TiedWeightAddsBothUses) {
  const OneParameter w = MakeParameter({8, 8}, Fp64(device()));
  EXPECT_TRUE(Gradcheck({.fn =
                             [&](const Inputs& in) {
                               return Linear(Linear(in[0], *w.p).tanh(), *w.p);
                             },
                         .inputs = {Randn({3, 8}, 3, at::kDouble, device())},
                         .store = w.store.get(),
                         .parameters = {w.p}}));
}

TEST_P(LinearTest, FrozenWeightStillPassesTheGradientOn) {
  const OneParameter w =
      MakeParameter({5, 8}, Fp64(device()), /*trainable=*/false);
  const at::Tensor x = Randn({3, 8}, 3, at::kDouble, device()).requires_grad_();
  torch::autograd::backward({Linear(x, *w.p).sum()});
  EXPECT_TRUE(
      at::allclose(x.grad(), w.p->As(at::kDouble).sum(0).expand({3, 8})));
}

TEST_P(LinearTest, ConstantInputStillReachesTheWeight) {
  const OneParameter w = MakeParameter({5, 8}, Fp64(device()));
  const at::Tensor x = Randn({3, 8}, 3, at::kDouble, device());
  BeginGradients(*w.store);
  torch::autograd::backward({Linear(x, *w.p).sum()});
  EXPECT_TRUE(at::allclose(w.p->grad(), x.sum(0).expand({5, 8})));
}

TEST_P(LinearTest, NothingIsRecordedWithoutGrad) {
  const at::NoGradGuard no_grad;
  const OneParameter w = MakeParameter({5, 8}, Fp64(device()));
  const at::Tensor x = Randn({3, 8}, 3, at::kDouble, device());
  EXPECT_EQ(Linear(x, *w.p).grad_fn(), nullptr);
}

TEST_P(LinearTest, ReadsNonContiguousInput) {
  const OneParameter w = MakeParameter({5, 8}, Fp64(device()));
  EXPECT_TRUE(Gradcheck(
      {.fn =
           [&](const Inputs& in) {
             return Linear(in[0].transpose(0, 1), *w.p).transpose(0, 1);
           },
       .inputs = {Randn({2, 3, 8}, 3, at::kDouble, device())},
       .store = w.store.get(),
       .parameters = {w.p}}));
}

TEST_P(RmsNormTest, GradientsMatchCentralDifferences) {
  const OneParameter gain = MakeParameter({8}, Fp64(device()));
  EXPECT_TRUE(Gradcheck({.fn =
                             [&](const Inputs& in) {
                               return RmsNorm(in[0], *gain.p, kEps,
                                              at::kDouble);
                             },
                         .inputs = {Randn({2, 3, 8}, 3, at::kDouble, device())},
                         .store = gain.store.get(),
                         .parameters = {gain.p}}));
}

TEST_P(RmsNormTest, AgreesWithPlainAutograd) {
  for (const auto& [rows, c] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 8},
                                                {127, 40},
                                                {1000, 96},
                                                {127, 1000},
                                                {5, 129},
                                                {7, 1999},
                                                {33, 4100},
                                                {3, 12289},
                                                {3, 16384},
                                                {2, 16400}}) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << c << ", " << dtype);
      // The gain and its gradient stay wide, as under autocast.
      const at::ScalarType wide =
          dtype == at::kDouble ? at::kDouble : at::kFloat;
      const OneParameter gain =
          MakeParameter({c}, Stored(device(), wide, wide));
      const Inputs inputs = {Randn({rows, c}, 3, dtype, device()),
                             gain.p->As(wide)};
      const OpFn plain = [dtype](const Inputs& in) {
        return PlainRmsNorm(in[0], in[1]).to(dtype);
      };
      const OpFn oracle = [](const Inputs& in) {
        return PlainRmsNorm(in[0], in[1]);
      };
      ExpectWithinBudget(Evaluate(
                             [&](const Inputs& in) {
                               return RmsNorm(in[0], *gain.p, kEps, dtype);
                             },
                             {inputs[0]}, &gain),
                         Evaluate(plain, inputs),
                         EvaluateInFp64(oracle, inputs));
    }
  }
}

TEST_P(RmsNormTest, WideResidualGivesNarrowActivations) {
  const OneParameter gain =
      MakeParameter({80}, Stored(device(), at::kBFloat16, at::kBFloat16));
  const Inputs inputs = {Randn({127, 80}, 3, at::kFloat, device()),
                         gain.p->As(at::kFloat)};
  const OpFn op = [&](const Inputs& in) {
    return RmsNorm(in[0], *gain.p, kEps, at::kBFloat16);
  };
  const OpFn plain = [](const Inputs& in) {
    return PlainRmsNorm(in[0], in[1]).to(at::kBFloat16);
  };
  const Evaluation got = Evaluate(op, {inputs[0]}, &gain);
  EXPECT_EQ(got.y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.grads[0].scalar_type(), at::kFloat);
  EXPECT_EQ(got.grads[1].scalar_type(), at::kBFloat16);
  Evaluation naive = Evaluate(plain, inputs);
  naive.grads[1] = naive.grads[1].to(at::kBFloat16);
  const OpFn oracle = [](const Inputs& in) {
    return PlainRmsNorm(in[0], in[1]);
  };
  ExpectWithinBudget(got, naive, EvaluateInFp64(oracle, inputs));
}

TEST_P(RmsNormTest, GradientsAreTheSameOnAnyNumberOfThreads) {
  const OneParameter gain =
      MakeParameter({96}, Stored(device(), at::kFloat, at::kFloat));
  const at::Tensor x = Randn({1000, 96}, 3, at::kFloat, device());
  const OpFn op = [&](const Inputs& in) {
    return RmsNorm(in[0], *gain.p, kEps, at::kFloat);
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Evaluation one = Evaluate(op, {x}, &gain);
  at::set_num_threads(3);
  const Evaluation three = Evaluate(op, {x}, &gain);
  at::set_num_threads(threads);
  ASSERT_EQ(one.grads.size(), 2);  // of x and of the gain
  for (size_t i = 0; i < one.grads.size(); ++i) {
    EXPECT_TRUE(BitEqual(one.grads[i], three.grads[i])) << i;
  }
}

TEST_P(RmsNormTest, SecondMicroBatchAddsToTheFirst) {
  const OneParameter gain = MakeParameter({40}, Fp64(device()));
  const at::Tensor x = Randn({16, 40}, 3, at::kDouble, device());
  const auto accumulate = [&] {
    torch::autograd::backward({RmsNorm(x, *gain.p, kEps, at::kDouble).sum()});
  };
  gain.p->grad().fill_(1e6);
  BeginGradients(*gain.store);
  accumulate();
  const at::Tensor once = gain.p->grad().clone();
  accumulate();
  EXPECT_LT(once.abs().max().item<double>(), 1e3);
  EXPECT_TRUE(at::allclose(gain.p->grad(), 2 * once));
}

TEST_P(RmsNormTest, FrozenGainStillPassesTheGradientOn) {
  const OneParameter gain =
      MakeParameter({8}, Fp64(device()), /*trainable=*/false);
  EXPECT_TRUE(Gradcheck({.fn =
                             [&](const Inputs& in) {
                               return RmsNorm(in[0], *gain.p, kEps,
                                              at::kDouble);
                             },
                         .inputs = {Randn({3, 8}, 3, at::kDouble, device())},
                         .store = gain.store.get()}));
}

at::Tensor Ids(at::Device device) {
  // Repeats within and between sequences; row 3 of the table is never read.
  return at::tensor({0, 4, 4, 1, 4, 2}, at::kLong).view({2, 3}).to(device);
}

TEST_P(EmbeddingTest, GradientMatchesCentralDifferences) {
  const OneParameter table = MakeParameter({5, 8}, Fp64(device()));
  const at::Tensor ids = Ids(device());
  EXPECT_TRUE(Gradcheck(
      {.fn =
           [&](const Inputs&) { return Embedding(ids, *table.p, at::kDouble); },
       .inputs = {},
       .store = table.store.get(),
       .parameters = {table.p}}));
}

TEST_P(EmbeddingTest, SumsInFp32WhateverTheBuffer) {
  const at::Tensor ids =
      at::zeros({1, 1000}, at::device(device()).dtype(at::kLong));
  for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16}) {
    const OneParameter table =
        MakeParameter({2, 40}, Stored(device(), at::kBFloat16, gradient));
    const at::Tensor x = Embedding(ids, *table.p, at::kBFloat16);
    EXPECT_EQ(x.scalar_type(), at::kBFloat16);
    table.p->grad().fill_(1e6);
    BeginGradients(*table.store);
    torch::autograd::backward({x}, {at::ones_like(x)});
    // BF16 sums would stop growing at 256.
    const at::Tensor got = table.p->grad().to(at::kFloat);
    EXPECT_TRUE(at::all(got[0] == 1000).item<bool>());
    EXPECT_TRUE(at::all(got[1] == 0).item<bool>());
  }
}

// Ids of which some are frequent, as words are, and most of a large table
// absent.
at::Tensor SkewedIds(int64_t tokens, int64_t vocab, at::Device device) {
  return Randn({1, tokens}, 7, at::kDouble, at::kCPU)
      .abs()
      .pow(3)
      .mul(0.05 * static_cast<double>(vocab))
      .to(at::kLong)
      .clamp_max(vocab - 1)
      .to(device);
}

TEST_P(EmbeddingTest, AgreesWithPlainAutograd) {
  struct Shape {
    int64_t tokens, vocab, width;
  };
  std::vector<Shape> shapes = {{1, 1, 1},         {127, 17, 8},
                               {1000, 1000, 129}, {1000, 40, 1000},
                               {5000, 3001, 40},  {300, 50, 1600}};
  // So many frequent words that blocks of the kernel write several rows each.
  if (device().is_cuda()) shapes.push_back({20000, 3001, 1600});
  using Dtypes = std::pair<at::ScalarType, at::ScalarType>;
  for (const auto& [tokens, vocab, width] : shapes) {
    const at::Tensor ids = SkewedIds(tokens, vocab, device());
    for (const auto& [rows, dtype] :
         {Dtypes(at::kFloat, at::kFloat), Dtypes(at::kFloat, at::kBFloat16),
          Dtypes(at::kFloat, at::kHalf), Dtypes(at::kBFloat16, at::kFloat),
          Dtypes(at::kBFloat16, at::kBFloat16)}) {
      SCOPED_TRACE(::testing::Message()
                   << tokens << " tokens, " << vocab << " x " << width << ", "
                   << rows << " to " << dtype);
      const OneParameter table =
          MakeParameter({vocab, width}, Stored(device(), at::kFloat, dtype));
      const Inputs inputs = {table.p->As(at::kFloat)};
      const OpFn plain = [&](const Inputs& in) {
        return at::embedding(in[0], ids).to(rows);
      };
      const Evaluation got = Evaluate(
          [&](const Inputs&) { return Embedding(ids, *table.p, rows); }, {},
          &table);
      Evaluation naive = Evaluate(plain, inputs);
      naive.grads[0] = naive.grads[0].to(dtype);
      ExpectWithinBudget(got, naive, EvaluateInFp64(plain, inputs));
    }
  }
}

TEST_P(EmbeddingTest, SecondMicroBatchAddsToTheFirst) {
  const OneParameter table =
      MakeParameter({100, 40}, Stored(device(), at::kFloat, at::kBFloat16));
  const at::Tensor ids = SkewedIds(1000, 100, device());
  const auto accumulate = [&] {
    const at::Tensor x = Embedding(ids, *table.p, at::kFloat);
    torch::autograd::backward({x}, {at::ones_like(x)});
  };
  table.p->grad().fill_(1e6);
  BeginGradients(*table.store);
  accumulate();
  const at::Tensor once = table.p->grad().clone();
  accumulate();
  EXPECT_EQ(
      once.max().item<double>(),
      at::bincount(ids.view({-1})).max().to(at::kBFloat16).item<double>());
  EXPECT_TRUE(at::allclose(table.p->grad(), 2 * once, 0.01));
}

TEST_P(EmbeddingTest, TiedWithTheHeadAddsBothUses) {
  const OneParameter table = MakeParameter({5, 8}, Fp64(device()));
  const at::Tensor ids = Ids(device());
  EXPECT_TRUE(Gradcheck(
      {.fn =
           [&](const Inputs&) {
             return Linear(Embedding(ids, *table.p, at::kDouble), *table.p);
           },
       .inputs = {},
       .store = table.store.get(),
       .parameters = {table.p}}));
}

TEST_P(EmbeddingTest, SameBitsOnEveryRun) {
  const OneParameter table =
      MakeParameter({50, 96}, Stored(device(), at::kFloat, at::kFloat));
  const at::Tensor ids =
      Randn({4, 1000}, 5, at::kFloat, device()).mul(8).abs().to(at::kLong);
  const OpFn op = [&](const Inputs&) {
    return Embedding(ids, *table.p, at::kFloat);
  };
  const at::Tensor first = Evaluate(op, {}, &table).grads[0];
  for (int run = 0; run < 5; ++run) {
    EXPECT_TRUE(BitEqual(Evaluate(op, {}, &table).grads[0], first));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, LinearTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, RmsNormTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, RmsNormTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, EmbeddingTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, EmbeddingTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
