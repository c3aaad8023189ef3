// Tensors of more than 2^31 elements: the last of many heads against the same
// head alone.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/DeviceAccelerator.h"
#include "absl/status/statusor.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr double kGiB = 1073741824.0;

struct LargeCase {
  const AttentionBackend* backend;
  const char* what;  // has more than 2^31 elements
  at::ScalarType dtype;
  int64_t b, h, n, d;

  AttentionProblem Problem(const DeviceInfo& device) const {
    AttentionProblem problem;
    problem.b = b;
    problem.h = problem.g = h;
    problem.s = problem.t = n;
    problem.d = d;
    problem.dtype = dtype;
    problem.deterministic = true;
    problem.cuda = true;
    problem.compute_capability = device.compute_capability;
    return problem;
  }
};

std::string CaseName(const ::testing::TestParamInfo<LargeCase>& info) {
  const LargeCase& c = info.param;
  return std::string(c.backend->name()) + "_" + c.what + "_d" +
         std::to_string(c.d) + "_" + c10::toString(c.dtype);
}

std::vector<LargeCase> Cases() {
  std::vector<LargeCase> cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    // 2.2e9 elements in Q, K, V and each gradient; through the Hopper kernels,
    // the portable ones and those for FP32.
    cases.push_back({backend, "Q", at::kBFloat16, 260, 64, 1024, 128});
    cases.push_back({backend, "Q", at::kBFloat16, 254, 64, 1024, 136});
    cases.push_back({backend, "Q", at::kFloat, 540, 64, 1024, 64});
    // 2.2e9 scores.
    cases.push_back({backend, "S", at::kBFloat16, 1, 33, 8192, 32});
  }
  return cases;
}

struct Operands {
  AttentionArgs args;
  at::Tensor d_o;
};

Operands Random(const LargeCase& c) {
  at::manual_seed(7);
  const auto random = [&] {
    return at::randn({c.b, c.h, c.n, c.d},
                     at::TensorOptions(at::kCUDA).dtype(c.dtype));
  };
  Operands x;
  x.args.q_bhsd = random();
  x.args.k_bgtd = random();
  x.args.v_bgtd = random();
  x.args.scale = 1 / std::sqrt(static_cast<double>(c.d));
  x.args.deterministic = true;
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

// O, dQ, dK, dV of the last head.
std::vector<at::Tensor> ForwardBackward(const AttentionBackend& backend,
                                        const Operands& x) {
  AttentionOut out;
  const absl::Status forward = backend.Forward(x.args, &out);
  EXPECT_TRUE(forward.ok()) << forward;
  AttentionGrads grads{at::empty_like(x.args.q_bhsd),
                       at::empty_like(x.args.k_bgtd),
                       at::empty_like(x.args.v_bgtd)};
  const absl::Status backward = backend.Backward(x.args, out, x.d_o, &grads);
  EXPECT_TRUE(backward.ok()) << backward;
  return {LastHead(out.o_bhsd), LastHead(grads.dq_bhsd),
          LastHead(grads.dk_bgtd), LastHead(grads.dv_bgtd)};
}

class GpuLargeTensor : public ::testing::TestWithParam<LargeCase> {};
TEST_P(GpuLargeTensor, LastHeadIsThatHeadAlone) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const LargeCase& c = GetParam();
  at::accelerator::emptyCache();  // of what earlier tests left
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  const AttentionProblem problem = c.Problem(*device);
  const absl::Status supports = c.backend->Supports(problem);
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  const AttentionMemory plan = c.backend->Plan(problem);
  const int64_t operand = c.b * c.h * c.n * c.d * c10::elementSize(c.dtype);
  const int64_t needed = 7 * operand + plan.saved_bytes +
                         std::max(plan.forward_bytes, plan.backward_bytes);
  if (needed > device->free_bytes * 9 / 10) {
    GTEST_SKIP() << "needs " << needed / kGiB << " GiB of the device";
  }
  const Operands all = Random(c);
  const std::vector<at::Tensor> large = ForwardBackward(*c.backend, all);
  const std::vector<at::Tensor> alone =
      ForwardBackward(*c.backend, LastHead(all));
  for (size_t i = 0; i < alone.size(); ++i) {
    // Products of other shapes may take other kernels of cuBLAS.
    const double error = (large[i] - alone[i]).abs().max().item<float>();
    EXPECT_LT(error, c.dtype == at::kFloat ? 1e-4 : 0.05) << "result " << i;
    EXPECT_GT(alone[i].abs().max().item<float>(), 0.1) << "result " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(All, GpuLargeTensor, ::testing::ValuesIn(Cases()),
                         CaseName);

}  // namespace
}  // namespace tessera
