// Compares what the variants of NAIVE hold for the backward pass with what
// autograd holds for the same computation. The conformance suite tests their
// results.

#include "attention_backends/naive/naive_backend.h"

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/allocation_meter.h"
#include "tests/attention_backends/attention_as_function.h"
#include "tests/attention_backends/attention_oracle.h"
#include "tests/testing/gradcheck.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera {
namespace {

constexpr int64_t kB = 2, kS = 64, kH = 4, kD = 4;
constexpr double kScale = 0.4;

// The weights of attention as commonly written in PyTorch.
at::Tensor LibraryWeights(const at::Tensor& s) {
  const at::Tensor sees_a_key = at::ones({s.size(2), 1}, at::kBool);
  return at::where(sees_a_key, s.softmax(-1), 0);
}

at::Tensor HandWrittenWeights(const at::Tensor& s) {
  const at::Tensor e = (s - s.amax(-1, true)).exp();
  return e / e.sum(-1, true);
}

struct Variant {
  HeldScores held;
  at::Tensor (*weights)(const at::Tensor& s);
};

std::string Name(const ::testing::TestParamInfo<Variant>& info) {
  return std::to_string(static_cast<int>(info.param.held)) + "Tensors";
}

at::Tensor RandomQkv(at::ScalarType dtype) {
  at::manual_seed(11);
  return at::randn({kB, kS, 3 * kH, kD}, dtype);
}

// `heads`: Q, K and V, [B, 3 H, S, D].
AttentionArgs ArgsOf(const at::Tensor& heads) {
  AttentionArgs args;
  args.q_bhsd = heads.narrow(1, 0, kH);
  args.k_bgtd = heads.narrow(1, kH, kH);
  args.v_bgtd = heads.narrow(1, 2 * kH, kH);
  args.scale = kScale;
  args.mask = MaskSpec::Full();
  return args;
}

AttentionProblem Problem(at::ScalarType dtype) {
  AttentionProblem problem;
  problem.b = kB;
  problem.s = problem.t = kS;
  problem.h = problem.g = kH;
  problem.d = kD;
  problem.dtype = dtype;
  problem.mask = MaskSpec::Full();
  return problem;
}

class NaiveVariant : public ::testing::TestWithParam<Variant> {
 protected:
  const NaiveBackend backend_{GetParam().held};
};
INSTANTIATE_TEST_SUITE_P(
    All, NaiveVariant,
    ::testing::Values(
        Variant{HeldScores::kWeights,
                [](const at::Tensor& s) { return s.softmax(-1); }},
        Variant{HeldScores::kLibrarySoftmax, LibraryWeights},
        Variant{HeldScores::kHandWrittenSoftmax, HandWrittenWeights}),
    Name);

// Number of [B, H, S, S] tensors that autograd holds for `weights`, without O.
double HeldByAutograd(at::Tensor (*weights)(const at::Tensor&),
                      const at::Tensor& qkv) {
  const at::Tensor heads = qkv.transpose(1, 2).contiguous();
  const auto head = [&](int64_t i) {
    return heads.narrow(1, i * kH, kH).contiguous().set_requires_grad(true);
  };
  const at::Tensor q = head(0), k = head(1), v = head(2);
  const testing::AllocationMeter meter(at::kCPU);
  const at::Tensor o =
      at::matmul(weights(at::matmul(q, k.transpose(2, 3)) * kScale), v);
  return static_cast<double>(meter.current() - o.nbytes()) /
         (kB * kH * kS * kS * sizeof(float));
}

TEST_P(NaiveVariant, HoldsAsManyTensorsAsAutograd) {
  const int held = static_cast<int>(GetParam().held);
  const at::Tensor qkv = RandomQkv(at::kFloat);
  // It also holds a few numbers per row of 64.
  const double by_autograd = HeldByAutograd(GetParam().weights, qkv);
  EXPECT_GE(by_autograd, held);
  EXPECT_LT(by_autograd, held + 0.1);
}

TEST_P(NaiveVariant, HoldsWhatItPlans) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const AttentionArgs args = ArgsOf(RandomQkv(dtype).transpose(1, 2));
    const testing::AllocationMeter meter(at::kCPU);
    AttentionOut out;
    ASSERT_TRUE(backend_.Forward(args, &out).ok());
    EXPECT_EQ(meter.current(), backend_.Plan(Problem(dtype)).saved_bytes)
        << c10::toString(dtype);
  }
}

// Every held tensor is needed: changing one changes the gradients.
TEST_P(NaiveVariant, ReadsEveryTensorThatItHolds) {
  const at::Tensor heads = RandomQkv(at::kFloat).transpose(1, 2);
  const AttentionArgs args = ArgsOf(heads);
  AttentionOut out;
  ASSERT_TRUE(backend_.Forward(args, &out).ok());
  const at::Tensor d_o = at::randn_like(out.o_bhsd);
  const auto gradients = [&] {
    const at::Tensor all = at::empty_like(heads);
    AttentionGrads grads{all.narrow(1, 0, kH), all.narrow(1, kH, kH),
                         all.narrow(1, 2 * kH, kH)};
    EXPECT_TRUE(backend_.Backward(args, out, d_o, &grads).ok());
    return all;
  };
  const at::Tensor right = gradients();
  EXPECT_TRUE(at::equal(gradients(), right));
  int score_tensors = 0;
  for (at::Tensor& held : out.saved) {
    if (held.numel() == kB * kH * kS * kS) ++score_tensors;
    const at::Tensor whole = held;
    held = whole * 2;
    EXPECT_FALSE(at::equal(gradients(), right)) << held.sizes();
    held = whole;
  }
  EXPECT_EQ(score_tensors, static_cast<int>(GetParam().held));
}

TEST_P(NaiveVariant, AgreesWithAtenAutogradAndFiniteDifferences) {
  for (const MaskSpec mask :
       {MaskSpec::Causal(), MaskSpec::Full(), MaskSpec::Window(3)}) {
    const at::Tensor qkv = RandomQkv(at::kDouble).narrow(1, 0, 5).contiguous();
    const SelfAttentionSpec spec =
        testing::SpecFor(backend_, qkv, kH, kScale, mask);
    testing::GradcheckCase check;
    check.fn = [&spec](const std::vector<at::Tensor>& inputs) {
      return testing::SelfAttention(inputs[0], spec);
    };
    check.inputs = {qkv};
    EXPECT_TRUE(testing::Gradcheck(check));

    const at::Tensor leaf = qkv.clone().set_requires_grad(true);
    const at::Tensor o = testing::SelfAttention(leaf, spec);
    const at::Tensor d_o = at::randn_like(o);
    torch::autograd::backward({o}, {d_o});
    const at::Tensor heads = qkv.transpose(1, 2);
    const testing::AttentionResults eager = testing::EagerAttention(
        {heads.narrow(1, 0, kH), heads.narrow(1, kH, kH),
         heads.narrow(1, 2 * kH, kH), d_o.transpose(1, 2), kScale, mask},
        at::kDouble);
    const at::Tensor grad = at::cat({eager.dq, eager.dk, eager.dv}, 1);
    EXPECT_TRUE(at::allclose(leaf.grad(), grad.transpose(1, 2), 1e-12, 1e-12));
  }
}

}  // namespace
}  // namespace tessera
