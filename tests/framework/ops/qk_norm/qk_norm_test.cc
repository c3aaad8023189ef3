#include "framework/ops/qk_norm/qk_norm.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
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

class QkNormTest : public DeviceTest {};

struct Shape {
  int64_t b, s, h, g, d;
  bool by_head = true;

  int64_t query_width() const { return by_head ? d : h * d; }
  int64_t key_width() const { return by_head ? d : g * d; }
  std::vector<int64_t> qkv() const { return {b, s, h + 2 * g, d}; }
};

Shape WholeProjections(Shape shape) {
  shape.by_head = false;
  return shape;
}

ParameterBlockSpec Gain(const std::string& name, int64_t width,
                        bool trainable = true) {
  return {.name = name,
          .members = {{name, {width}, Init::kZeros}},
          .trainable = trainable};
}

// The gains of queries, which are `p`, and of keys.
OneParameter MakeGains(const Shape& shape, const ParameterStoreOptions& options,
                       bool trains_keys = true) {
  return MakeParameters({Gain("queries", shape.query_width()),
                         Gain("keys", shape.key_width(), trains_keys)},
                        options);
}

ParameterStoreOptions Stored(at::Device device, at::ScalarType dtype) {
  return {.device = device, .weights = {dtype, dtype}, .gradient = dtype};
}

at::Tensor Ours(const at::Tensor& qkv, const OneParameter& gains,
                const Shape& shape) {
  return RunAsFunction(
      {.build =
           [&](ProgramBuilder& b, const std::vector<Value>& in, Weight first) {
             return QkNorm(b, in[0], {first, Weight{first.parameter + 1}},
                           shape.g, kEps);
           },
       .precision =
           PolicyFor(qkv.scalar_type(), gains.store->options().weights.master),
       .parameter = gains.p},
      {qkv});
}

// in: qkv, the queries' gain, the keys' gain.
at::Tensor Plain(const Inputs& in, const Shape& shape) {
  const auto norm = [&](const at::Tensor& heads, const at::Tensor& gain) {
    const at::Tensor x = shape.by_head ? heads : heads.flatten(2);
    const at::Tensor y =
        x * (x.square().mean(-1, /*keepdim=*/true) + kEps).rsqrt() * gain;
    return y.view(heads.sizes());
  };
  const at::Tensor& qkv = in[0];
  return at::cat({norm(qkv.narrow(2, 0, shape.h), in[1]),
                  norm(qkv.narrow(2, shape.h, shape.g), in[2]),
                  qkv.narrow(2, shape.h + shape.g, shape.g)},
                 2);
}

// Evaluate() with the gradient of the keys' gain at the end.
Evaluation EvaluateOurs(const at::Tensor& qkv, const OneParameter& gains,
                        const Shape& shape) {
  Evaluation result =
      Evaluate([&](const Inputs& in) { return Ours(in[0], gains, shape); },
               {qkv}, &gains);
  result.grads.push_back(gains.store->Get("keys").grad().clone());
  return result;
}

TEST_P(QkNormTest, GradientsMatchCentralDifferences) {
  const Shape by_head = {2, 3, 4, 2, 8};
  for (const Shape& shape : {by_head, WholeProjections(by_head)}) {
    const OneParameter gains = MakeGains(shape, Fp64(device()));
    EXPECT_TRUE(Gradcheck(
        {.fn = [&](const Inputs& in) { return Ours(in[0], gains, shape); },
         .inputs = {Randn(shape.qkv(), 3, at::kDouble, device())},
         .store = gains.store.get(),
         .parameters = {gains.p, &gains.store->Get("keys")}}));
  }
}

TEST_P(QkNormTest, FrozenGainsStillPassTheGradientOn) {
  const Shape shape = {1, 3, 2, 1, 8};
  const OneParameter gains =
      MakeGains(shape, Fp64(device()), /*trains_keys=*/false);
  EXPECT_TRUE(Gradcheck(
      {.fn = [&](const Inputs& in) { return Ours(in[0], gains, shape); },
       .inputs = {Randn(shape.qkv(), 3, at::kDouble, device())},
       .store = gains.store.get(),
       .parameters = {gains.p}}));
}

void ExpectAgreesWithPlainAutograd(const Shape& shape, at::ScalarType dtype,
                                   at::Device device) {
  // The gains and their gradients stay wide, as under autocast.
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const OneParameter gains = MakeGains(shape, Stored(device, wide));
  const Inputs inputs = {Randn(shape.qkv(), 3, dtype, device),
                         gains.p->As(wide), gains.store->Get("keys").As(wide)};
  const OpFn naive = [&](const Inputs& in) {
    return Plain(in, shape).to(dtype);
  };
  const OpFn oracle = [&](const Inputs& in) { return Plain(in, shape); };
  const Evaluation got = EvaluateOurs(inputs[0], gains, shape);
  ExpectWithinBudget(got, Evaluate(naive, inputs),
                     EvaluateInFp64(oracle, inputs));
  const auto values = [&](const at::Tensor& x) {
    return x.narrow(2, shape.h + shape.g, shape.g);
  };
  EXPECT_TRUE(BitEqual(values(got.y), values(inputs[0])));
  // The cotangent of Evaluate().
  const at::Tensor dy = Randn(shape.qkv(), 2, at::kBFloat16, device).to(dtype);
  EXPECT_TRUE(BitEqual(values(got.grads[0]), values(dy)));
}

TEST_P(QkNormTest, AgreesWithPlainAutograd) {
  // The last three have queries of 5120, 9216 and 17408 elements.
  for (const Shape& by_head :
       {Shape{1, 1, 1, 1, 8}, Shape{2, 127, 3, 1, 40}, Shape{1, 127, 4, 2, 80},
        Shape{2, 3, 6, 3, 96}, Shape{1, 127, 8, 2, 128}, Shape{1, 5, 2, 1, 256},
        Shape{1, 7, 5, 5, 24}, Shape{3, 500, 4, 4, 64}, Shape{1, 3, 40, 8, 128},
        Shape{1, 2, 72, 8, 128}, Shape{1, 2, 136, 8, 128}}) {
    for (const Shape& shape : {by_head, WholeProjections(by_head)}) {
      for (const at::ScalarType dtype : FloatDtypes(device())) {
        SCOPED_TRACE(::testing::Message()
                     << shape.b << " x " << shape.s << " tokens, H " << shape.h
                     << ", G " << shape.g << ", D " << shape.d
                     << (shape.by_head ? ", heads, " : ", projections, ")
                     << dtype);
        ExpectAgreesWithPlainAutograd(shape, dtype, device());
      }
    }
  }
}

TEST_P(QkNormTest, GradientsAreTheSameOnAnyNumberOfThreads) {
  const Shape shape = {2, 500, 3, 1, 96};
  const OneParameter gains = MakeGains(shape, Stored(device(), at::kFloat));
  const at::Tensor qkv = Randn(shape.qkv(), 3, at::kFloat, device());
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Evaluation one = EvaluateOurs(qkv, gains, shape);
  at::set_num_threads(3);
  const Evaluation three = EvaluateOurs(qkv, gains, shape);
  at::set_num_threads(threads);
  ASSERT_EQ(one.grads.size(), 3);
  for (size_t i = 0; i < one.grads.size(); ++i) {
    EXPECT_TRUE(BitEqual(one.grads[i], three.grads[i])) << i;
  }
}

TEST_P(QkNormTest, SecondMicroBatchAddsToTheFirst) {
  const Shape by_head = {2, 9, 4, 2, 40};
  for (const Shape& shape : {by_head, WholeProjections(by_head)}) {
    const OneParameter gains = MakeGains(shape, Stored(device(), at::kFloat));
    const at::Tensor qkv = Randn(shape.qkv(), 3, at::kFloat, device());
    const at::Tensor buffer = gains.store->grad();
    const auto accumulate = [&] {
      torch::autograd::backward({Ours(qkv, gains, shape).square().sum()});
    };
    buffer.fill_(1e6);
    BeginGradients(*gains.store);
    accumulate();
    gains.store->ZeroGradientGaps();
    const at::Tensor once = buffer.clone();
    EXPECT_LT(once.abs().max().item<double>(), 1e5);
    accumulate();
    EXPECT_TRUE(at::allclose(buffer, 2 * once));
  }
}

TEST_P(QkNormTest, DoesNotModifyASharedGradient) {
  const Shape shape = {2, 4, 2, 1, 8};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const OneParameter gains = MakeGains(shape, Stored(device(), dtype));
    const at::Tensor qkv =
        Randn(shape.qkv(), 3, dtype, device()).requires_grad_();
    const at::Tensor dy = Randn(shape.qkv(), 4, dtype, device());
    const at::Tensor before = dy.clone();
    BeginGradients(*gains.store);
    torch::autograd::backward({Ours(qkv, gains, shape)}, {dy});
    EXPECT_TRUE(BitEqual(dy, before));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QkNormTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, QkNormTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
