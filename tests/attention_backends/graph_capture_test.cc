// Captures forward and backward of every backend in a CUDA graph and replays it
// on other values.

#ifdef TESSERA_CUDA
#include "ATen/cuda/CUDAGraph.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#endif

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/status/statusor.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/conformance_cases.h"

namespace tessera::testing {
namespace {

std::string CaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return info.param.ToString();
}

std::vector<ConformanceCase> Cases() {
  std::vector<ConformanceCase> cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      cases.push_back(
          {backend, {2, 200, 200, 3, 3, 64}, MaskSpec::Full(), dtype});
      cases.push_back(
          {backend, {2, 300, 300, 4, 2, 80}, MaskSpec::Causal(), dtype});
      cases.push_back(
          {backend, {1, 200, 300, 2, 2, 136}, MaskSpec::Causal(), dtype});
      for (const int64_t d : {80, 136}) {
        cases.push_back({.backend = backend,
                         .shape = {2, 300, 300, 4, 2, d},
                         .dtype = dtype,
                         .deterministic = true});
      }
    }
  }
  return cases;
}

#ifdef TESSERA_CUDA
struct Pass {
  AttentionArgs args;
  at::Tensor d_o;
  AttentionOut out;
  AttentionGrads grads;

  explicit Pass(const ConformanceCase& c) {
    const auto zeros = [&](int64_t heads, int64_t rows) {
      return at::zeros({c.shape.b, heads, rows, c.shape.d},
                       at::TensorOptions(at::kCUDA).dtype(c.dtype));
    };
    const auto queries = [&] { return zeros(c.shape.h, c.shape.s); };
    const auto keys = [&] { return zeros(c.shape.g, c.shape.t); };
    args.q_bhsd = queries();
    args.k_bgtd = keys();
    args.v_bgtd = keys();
    args.scale = 0.125;
    args.mask = c.mask;
    args.deterministic = c.deterministic;
    d_o = queries();
    grads = {queries(), keys(), keys()};
  }

  void Fill(uint64_t seed) const {
    at::manual_seed(seed);
    for (const at::Tensor& x : {args.q_bhsd, args.k_bgtd, args.v_bgtd, d_o}) {
      x.copy_(at::randn(x.sizes(), at::kFloat));
    }
  }

  void Run(const AttentionBackend& backend) {
    const absl::Status forward = backend.Forward(args, &out);
    ASSERT_TRUE(forward.ok()) << forward;
    const absl::Status backward = backend.Backward(args, out, d_o, &grads);
    ASSERT_TRUE(backward.ok()) << backward;
  }

  std::vector<at::Tensor> Results() const {
    return {out.o_bhsd, grads.dq_bhsd, grads.dk_bgtd, grads.dv_bgtd};
  }
};
#endif

class GpuGraphCapture : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(GpuGraphCapture, ReplaysOnOtherValues) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
#ifdef TESSERA_CUDA
  const ConformanceCase& c = GetParam();
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::Status supports = c.backend->Supports(c.Problem(*device));
  if (!supports.ok()) GTEST_SKIP() << supports.message();

  Pass captured(c);
  at::cuda::CUDAGraph graph;
  {
    // Capture needs a separate stream and the setup that the first call does.
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    captured.Run(*c.backend);
    if (HasFatalFailure()) return;
    Synchronize(device->device);
    graph.capture_begin();
    captured.Run(*c.backend);
    graph.capture_end();
    Synchronize(device->device);
  }
  for (const uint64_t seed : {1, 2}) {
    captured.Fill(seed);
    graph.replay();
    Pass eager(c);
    eager.Fill(seed);
    eager.Run(*c.backend);
    const std::vector<at::Tensor> replayed = captured.Results();
    const std::vector<at::Tensor> expected = eager.Results();
    for (size_t i = 0; i < expected.size(); ++i) {
      // Atomic sums have no fixed order.
      const double error =
          (replayed[i] - expected[i]).abs().max().item<float>();
      const double allowed = c.deterministic         ? 0
                             : c.dtype == at::kFloat ? 1e-4
                                                     : 0.05;
      EXPECT_LE(error, allowed) << "result " << i << ", seed " << seed;
      EXPECT_GT(expected[i].abs().max().item<float>(), 0.1);
    }
  }
#endif
}
INSTANTIATE_TEST_SUITE_P(All, GpuGraphCapture, ::testing::ValuesIn(Cases()),
                         CaseName);

}  // namespace
}  // namespace tessera::testing
