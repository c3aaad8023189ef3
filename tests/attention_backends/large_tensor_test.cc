// Tensors of more than 2^31 elements, and more sequences or heads than a grid
// has rows: compares the last of many heads with a separate run on that head.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/DeviceAccelerator.h"
#include "absl/status/statusor.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/attention_sinks.h"
#include "attention_backends/backend_table.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/conformance_cases.h"

namespace tessera::testing {
namespace {

constexpr double kGiB = 1073741824.0;

std::string CaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return info.param.ToString();
}

std::vector<ConformanceCase> Cases() {
  std::vector<ConformanceCase> cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    const auto add = [&](at::ScalarType dtype, const Shape& shape,
                         bool deterministic, MaskSpec mask = MaskSpec::Full()) {
      cases.push_back({.backend = backend,
                       .shape = shape,
                       .mask = mask,
                       .dtype = dtype,
                       .deterministic = deterministic});
    };
    for (const bool deterministic : {false, true}) {
      // 2.2e9 elements in Q, K, V and each gradient, for the Hopper, portable
      // and FP32 kernels.
      add(at::kBFloat16, {260, 1024, 1024, 64, 64, 128}, deterministic);
      add(at::kBFloat16, {254, 1024, 1024, 64, 64, 136}, deterministic);
      add(at::kFloat, {540, 1024, 1024, 64, 64, 64}, deterministic);
      // 2.2e9 scores.
      add(at::kBFloat16, {1, 8192, 8192, 33, 33, 32}, deterministic);
      add(at::kBFloat16, {1, 8192, 8192, 33, 33, 32}, deterministic,
          MaskSpec::Causal());
      // A grid's y and z end at 65,535.
      add(at::kBFloat16, {70000, 8, 8, 1, 1, 64}, deterministic);
      add(at::kBFloat16, {70000, 8, 8, 1, 1, 136}, deterministic);
      add(at::kFloat, {70000, 8, 8, 1, 1, 64}, deterministic);
    }
  }
  return cases;
}

struct Operands {
  AttentionArgs args;
  at::Tensor d_o;
};

Operands Random(const ConformanceCase& c) {
  at::manual_seed(7);
  const auto random = [&] {
    return at::randn({c.shape.b, c.shape.h, c.shape.s, c.shape.d},
                     at::TensorOptions(at::kCUDA).dtype(c.dtype));
  };
  Operands x;
  x.args.q_bhsd = random();
  x.args.k_bgtd = random();
  x.args.v_bgtd = random();
  x.args.scale = 1 / std::sqrt(static_cast<double>(c.shape.d));
  x.args.mask = c.mask;
  x.args.deterministic = c.deterministic;
  x.d_o = random();
  return x;
}

at::Tensor LastHead(const at::Tensor& x_bhsd) {
  return x_bhsd.narrow(0, x_bhsd.size(0) - 1, 1)
      .narrow(1, x_bhsd.size(1) - 1, 1)
      .clone();
}

Operands LastHead(const Operands& x) {
  Operands last = x;
  for (at::Tensor* part :
       {&last.args.q_bhsd, &last.args.k_bgtd, &last.args.v_bgtd, &last.d_o}) {
    *part = LastHead(*part);
  }
  return last;
}

// O of the last head and, if gradients are needed, its dQ, dK and dV.
std::vector<at::Tensor> Results(const AttentionBackend& backend,
                                const Operands& x, bool needs_grad) {
  AttentionOut out;
  const absl::Status forward = backend.Forward(x.args, &out);
  EXPECT_TRUE(forward.ok()) << forward;
  if (!needs_grad) return {LastHead(out.o_bhsd)};
  AttentionGrads grads{at::empty_like(x.args.q_bhsd),
                       at::empty_like(x.args.k_bgtd),
                       at::empty_like(x.args.v_bgtd)};
  const absl::Status backward = backend.Backward(x.args, out, x.d_o, &grads);
  EXPECT_TRUE(backward.ok()) << backward;
  return {LastHead(out.o_bhsd), LastHead(grads.dq_bhsd),
          LastHead(grads.dk_bgtd), LastHead(grads.dv_bgtd)};
}

void ExpectLastHeadMatchesSeparateRun(const ConformanceCase& c,
                                      bool needs_grad) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  at::accelerator::emptyCache();  // left by earlier tests
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  AttentionProblem problem = c.Problem(*device);
  problem.needs_grad = needs_grad;
  const absl::Status supports = c.backend->Supports(problem);
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  const AttentionMemory plan = c.backend->Plan(problem);
  const int64_t operand =
      problem.b * problem.h * problem.s * problem.d * c10::elementSize(c.dtype);
  const int64_t needed = 7 * operand + plan.saved_bytes +
                         std::max(plan.forward_bytes, plan.backward_bytes);
  if (needed > device->free_bytes * 9 / 10) {
    GTEST_SKIP() << "needs " << needed / kGiB << " GiB of the device";
  }
  const Operands all = Random(c);
  const std::vector<at::Tensor> large = Results(*c.backend, all, needs_grad);
  const std::vector<at::Tensor> alone =
      Results(*c.backend, LastHead(all), needs_grad);
  for (size_t i = 0; i < alone.size(); ++i) {
    // cuBLAS may use different kernels for different shapes.
    const double error = (large[i] - alone[i]).abs().max().item<float>();
    EXPECT_LT(error, c.dtype == at::kFloat ? 1e-4 : 0.05) << "result " << i;
    EXPECT_GT(alone[i].abs().max().item<float>(), 0.1) << "result " << i;
  }
}

class GpuLargeTensor : public ::testing::TestWithParam<ConformanceCase> {};

TEST_P(GpuLargeTensor, LastHeadMatchesSeparateRun) {
  ExpectLastHeadMatchesSeparateRun(GetParam(), /*needs_grad=*/true);
}

// Some backends support larger problems without gradients.
TEST_P(GpuLargeTensor, LastHeadMatchesSeparateRunWithoutGradients) {
  ExpectLastHeadMatchesSeparateRun(GetParam(), /*needs_grad=*/false);
}

TEST(GpuAttentionSinks, OfManyHeads) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  constexpr int64_t kHeads = 70'000, kQueries = 3;
  const auto random = [](at::IntArrayRef shape) {
    return at::randn(shape, at::kCUDA);
  };
  const at::Tensor o = random({1, kQueries, kHeads, 8}).transpose(1, 2);
  const at::Tensor d_o = random({1, kQueries, kHeads, 8}).transpose(1, 2);
  const at::Tensor lse = random({1, kHeads, kQueries});
  const at::Tensor sinks = random({kHeads});
  const at::Tensor d_sinks = at::full_like(sinks, NAN);
  SinkGradients(sinks, o, lse, d_o, d_sinks);
  const at::Tensor p = (sinks.unsqueeze(1) - lse[0]).exp();
  const at::Tensor expected = -(p * (d_o * o)[0].sum(-1)).sum(-1);
  EXPECT_TRUE(at::allclose(d_sinks, expected, /*rtol=*/1e-4, /*atol=*/1e-3));
}

INSTANTIATE_TEST_SUITE_P(All, GpuLargeTensor, ::testing::ValuesIn(Cases()),
                         CaseName);

}  // namespace
}  // namespace tessera::testing
