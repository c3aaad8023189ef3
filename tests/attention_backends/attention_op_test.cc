#include "attention_backends/attention_op.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "framework/base/torch_status.h"
#include "framework/program/executor.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/attention_as_function.h"
#include "tests/attention_backends/attention_oracle.h"
#include "tests/attention_backends/picky_backend.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/framework/ops/ops_as_functions.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/gradient_state.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera {
namespace {

using testing::PickyBackend;

constexpr int64_t kHeads = 4, kKvHeads = 2;
constexpr double kScale = 0.4;

at::Tensor RandomQkv(at::ScalarType dtype) {
  at::manual_seed(7);
  return at::randn({2, 5, kHeads + 2 * kKvHeads, 8}, dtype);
}

SelfAttentionSpec Spec(const AttentionBackend* backend, const at::Tensor& qkv,
                       MaskSpec mask = MaskSpec::Causal()) {
  return testing::SpecFor(*backend, qkv, kKvHeads, kScale, mask);
}

// ATen's results, with the gradient of sum(O o dO) with respect to qkv.
testing::AttentionResults Eager(const at::Tensor& qkv, const at::Tensor& d_o,
                                const SelfAttentionSpec& spec) {
  const at::Tensor heads = qkv.detach().transpose(1, 2);
  const int64_t h = kHeads, g = kKvHeads;
  testing::AttentionInputs in;
  in.q = heads.narrow(1, 0, h);
  in.k = heads.narrow(1, h, g);
  in.v = heads.narrow(1, h + g, g);
  in.d_o = d_o.transpose(1, 2);
  in.scale = spec.scale;
  in.mask = spec.problem.mask;
  return testing::EagerAttention(in, qkv.scalar_type());
}

class SelfAttentionOf
    : public ::testing::TestWithParam<std::tuple<const char*, MaskSpec>> {
 protected:
  SelfAttentionSpec spec() const {
    return Spec(FindBackend(std::get<0>(GetParam())), RandomQkv(at::kDouble),
                std::get<1>(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, SelfAttentionOf,
    ::testing::Combine(::testing::Values("NAIVE", "FLASH_TILED"),
                       ::testing::Values(MaskSpec::Causal(), MaskSpec::Full(),
                                         MaskSpec::Window(5))));

TEST_P(SelfAttentionOf, AgreesWithAtenAutograd) {
  const SelfAttentionSpec spec = this->spec();
  const at::Tensor qkv = RandomQkv(at::kDouble).set_requires_grad(true);
  const at::Tensor o = testing::SelfAttention(qkv, spec);
  EXPECT_TRUE(o.is_contiguous());
  const at::Tensor d_o = at::randn_like(o);
  torch::autograd::backward({o}, {d_o});
  const testing::AttentionResults eager = Eager(qkv, d_o, spec);
  EXPECT_TRUE(at::allclose(o, eager.o.transpose(1, 2), 1e-12, 1e-12));
  const at::Tensor grad = at::cat({eager.dq, eager.dk, eager.dv}, 1);
  EXPECT_TRUE(at::allclose(qkv.grad(), grad.transpose(1, 2), 1e-12, 1e-12));
}

TEST_P(SelfAttentionOf, AgreesWithFiniteDifferences) {
  const SelfAttentionSpec spec = this->spec();
  testing::GradcheckCase check;
  check.fn = [&spec](const std::vector<at::Tensor>& inputs) {
    return testing::SelfAttention(inputs[0], spec);
  };
  check.inputs = {RandomQkv(at::kDouble)};
  EXPECT_TRUE(testing::Gradcheck(check));
}

testing::OneParameter MakeSinks() {
  return testing::MakeParameter({kHeads}, testing::Fp64(at::kCPU));
}

// Attention in FP64, with sinks, as a function of qkv.
testing::OpFn AttentionWith(const testing::OneParameter& sinks) {
  return [p = sinks.p](const std::vector<at::Tensor>& in) {
    SelfAttentionSpec spec = Spec(FindBackend("FLASH_TILED"), in[0]);
    spec.problem.sinks = true;
    return testing::RunAsFunction(
        {.build =
             [&](ProgramBuilder& b, const std::vector<Value>& x, Weight w) {
               spec.sinks = w;
               return SelfAttention(b, x[0], spec);
             },
         .precision = testing::PolicyFor(at::kDouble, at::kDouble),
         .parameter = p},
        in);
  };
}

TEST(SelfAttention, DifferentiatesSinks) {
  const at::Tensor qkv = RandomQkv(at::kDouble);
  const testing::OneParameter sinks = MakeSinks();
  EXPECT_TRUE(testing::Gradcheck({.fn = AttentionWith(sinks),
                                  .inputs = {qkv},
                                  .store = sinks.store.get(),
                                  .parameters = {sinks.p}}));
}

// As when everything but the sinks is frozen.
TEST(SelfAttention, DifferentiatesSinksAlone) {
  const testing::OneParameter sinks = MakeSinks();
  const auto gradient = [&](bool qkv_needs_grad) {
    testing::BeginGradients(*sinks.store);
    const at::Tensor qkv =
        RandomQkv(at::kDouble).set_requires_grad(qkv_needs_grad);
    const at::Tensor o = AttentionWith(sinks)({qkv});
    torch::autograd::backward({o}, {at::ones_like(o)});
    return sinks.p->grad().clone();
  };
  const at::Tensor sinks_only = gradient(/*qkv_needs_grad=*/false);
  const at::Tensor sinks_and_qkv = gradient(/*qkv_needs_grad=*/true);
  EXPECT_TRUE((sinks_only != 0).all().item<bool>());
  EXPECT_TRUE(at::equal(sinks_only, sinks_and_qkv));
}

TEST(SelfAttention, CountsGradientsThatNothingWants) {
  const at::Tensor qkv = RandomQkv(at::kDouble);
  ProgramBuilder b({.precision = PrecisionPolicy::Uniform(at::kDouble)});
  SelfAttentionSpec spec = Spec(FindBackend("FLASH_TILED"), qkv);
  spec.problem.sinks = true;
  spec.sinks =
      b.Parameter({.name = "z", .members = {{"z", {kHeads}, Init::kZeros}}});
  b.Output(
      SelfAttention(b, b.Input("qkv", {qkv.sizes().vec(), at::kDouble}), spec));
  const Program program = std::move(b).Build().value();
  const Op& op = *program.ops()[0].op;
  EXPECT_EQ(op.BackwardWorkspaceBytes({1}) - op.BackwardWorkspaceBytes({0, 1}),
            static_cast<int64_t>(qkv.nbytes()));
}

TEST(SelfAttention, ReturnsTheBackendsStatus) {
  const PickyBackend picky;
  const at::Tensor qkv = RandomQkv(at::kFloat);
  const SelfAttentionSpec spec = Spec(&picky, qkv);
  const absl::Status status =
      StatusFromTorch([&] { testing::SelfAttention(qkv, spec); });
  EXPECT_EQ(status, absl::ResourceExhaustedError(
                        "op attention (forward): picky: no memory"));
}

// Records the phases that are reported.
class PhaseLog final : public PhaseObserver {
 public:
  void Begin(absl::string_view segment) noexcept override {
    log_.append(segment.data(), segment.size()).append("(");
  }
  void End() noexcept override { log_ += ")"; }
  const std::string& log() const { return log_; }

 private:
  std::string log_;
};

TEST(SelfAttention, ReportsItsPhases) {
  const at::Tensor qkv = RandomQkv(at::kFloat);
  ProgramBuilder b({.precision = PrecisionPolicy::Uniform(at::kFloat)});
  const Value in = b.Input("qkv", {qkv.sizes().vec(), at::kFloat});
  b.Output(SelfAttention(b, in, Spec(FindBackend("NAIVE"), qkv)));
  const Program program = std::move(b).Build().value();
  const Schedule schedule = ForwardSchedule(program);
  const auto store = ParameterStore::Create({}, {}).value();
  PhaseLog phases;
  Executor executor(schedule, PlanLifetimes(schedule), *store,
                    {.phases = &phases});
  executor.SetInput(in, qkv);
  executor.Run();
  EXPECT_EQ(phases.log(), "forward(scores()softmax()values())");
}

}  // namespace
}  // namespace tessera
