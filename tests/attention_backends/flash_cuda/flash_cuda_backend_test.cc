// The refusals and plans of FLASH_CUDA; the conformance suite tests its
// results.

#include "attention_backends/flash_cuda/flash_cuda_backend.h"

#include <string>

#include "ATen/ATen.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

AttentionProblem Problem() {
  AttentionProblem problem;
  problem.b = 2;
  problem.s = problem.t = 1000;
  problem.h = 6;
  problem.g = 3;
  problem.d = 80;
  problem.dtype = at::kBFloat16;
  problem.cuda = true;
  problem.compute_capability = 90;
  return problem;
}

std::string Refusal(const AttentionProblem& problem) {
  return std::string(FlashCudaBackend().Supports(problem).message());
}

TEST(FlashCudaBackend, SupportsEveryHeadDimOfItsKernels) {
  EXPECT_EQ(Refusal(Problem()), "");
  for (const int capability : {80, 90}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (int d = 8; d <= 256; d += 8) {
        for (const double soft_cap : {0, 50}) {
          AttentionProblem problem = Problem();
          problem.compute_capability = capability;
          problem.dtype = dtype;
          problem.d = d;
          problem.soft_cap = soft_cap;
          EXPECT_EQ(Refusal(problem), "");
        }
      }
    }
  }
}

TEST(FlashCudaBackend, SaysWhyItRefuses) {
  AttentionProblem problem = Problem();
  problem.cuda = false;
  problem.compute_capability = 0;
  EXPECT_THAT(
      Refusal(problem),
      HasSubstr(kCudaBuild ? "change the device" : "build with --config=cuda"));
  problem = Problem();
  problem.compute_capability = 75;
  EXPECT_THAT(Refusal(problem), HasSubstr("this GPU has 7.5"));
  problem = Problem();
  problem.dtype = at::kDouble;
  EXPECT_THAT(Refusal(problem), HasSubstr("not in Double"));
  problem = Problem();
  problem.d = 84;
  EXPECT_THAT(Refusal(problem), HasSubstr("not 84"));
  problem.d = 264;
  EXPECT_THAT(Refusal(problem), HasSubstr("not 264"));
  problem = Problem();
  problem.t = (int64_t{1} << 30) + 1;
  EXPECT_THAT(Refusal(problem), HasSubstr("shorten the context"));
  problem = Problem();
  for (const double soft_cap : {1e-21, 1e21}) {
    problem.soft_cap = soft_cap;
    EXPECT_THAT(Refusal(problem), HasSubstr("caps scores at 1e-20 to 1e+20"));
  }
  problem = Problem();
  problem.compute_capability = 86;
  problem.d = 128;
  EXPECT_THAT(Refusal(problem), HasSubstr("use smaller heads"));
  problem.needs_grad = false;  // the forward pass fits
  EXPECT_EQ(Refusal(problem), "");
}

// GPUs with 99 KiB of shared memory per CUDA block.
TEST(FlashCudaBackend, TrainsFloatUpToHeadDim96OnSmallGpus) {
  AttentionProblem problem = Problem();
  problem.compute_capability = 86;
  problem.dtype = at::kFloat;
  for (problem.d = 8; problem.d <= 96; problem.d += 8) {
    EXPECT_EQ(Refusal(problem), "");
  }
  EXPECT_THAT(Refusal(problem), HasSubstr("use smaller heads"));
  // With a soft cap, head dims above 64 run in the kernels of 128.
  problem.soft_cap = 50;
  problem.d = 64;
  EXPECT_EQ(Refusal(problem), "");
  problem.d = 72;
  EXPECT_THAT(Refusal(problem), HasSubstr("use smaller heads"));
}

TEST(FlashCudaBackend, PlansOnlyOAndL) {
  AttentionProblem problem = Problem();
  problem.compute_capability = 80;
  problem.deterministic = true;
  const AttentionMemory memory = FlashCudaBackend().Plan(problem);
  EXPECT_EQ(memory.saved_bytes, 2 * 6 * 1000 * (80 * 2 + 4));
  EXPECT_EQ(memory.forward_bytes, 0);
  // Two floats per row.
  EXPECT_EQ(memory.backward_bytes, (2 * 6 * 1000 * 8 + 255) / 256 * 256);
  problem.deterministic = false;
  EXPECT_GT(FlashCudaBackend().Plan(problem).backward_bytes,
            memory.backward_bytes + 2 * 6 * 1000 * 80 * 4);
}

// dQ is summed in place.
TEST(FlashCudaBackend, PlansTwoFloatsPerRowForFp32Backward) {
  AttentionProblem problem = Problem();
  problem.dtype = at::kFloat;
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    const AttentionMemory memory = FlashCudaBackend().Plan(problem);
    EXPECT_EQ(memory.saved_bytes, 2 * 6 * 1000 * (80 * 4 + 4));
    EXPECT_EQ(memory.forward_bytes, 0);
    EXPECT_EQ(memory.backward_bytes, 2 * 6 * 1000 * 8);
  }
}

// 8 tiles of 128 queries per head have FP32 sums of dQ and two floats per row.
// Each of the 96 tiles has a turn, and there is one counter, rounded up to 16
// bytes.
// In TF32 the sums of dQ are in the workspace, in FP32 they are not.
TEST(FlashCudaBackend, RunsInTf32WhereItHasTheKernels) {
  const auto runs_in_tf32 = [](int64_t d, int compute_capability) {
    AttentionProblem problem = Problem();
    problem.compute_capability = compute_capability;
    problem.dtype = at::kFloat;
    problem.d = d;
    const int64_t fp32 = FlashCudaBackend().Plan(problem).backward_bytes;
    problem.tf32 = true;
    const int64_t tf32 = FlashCudaBackend().Plan(problem).backward_bytes;
    EXPECT_TRUE(tf32 == fp32 || tf32 > fp32 + 2 * 6 * 1000 * d * 4);
    return tf32 != fp32;
  };
  EXPECT_TRUE(runs_in_tf32(8, 90));
  EXPECT_TRUE(runs_in_tf32(128, 90));
  EXPECT_FALSE(runs_in_tf32(136, 90));
  EXPECT_TRUE(runs_in_tf32(96, 80));
  EXPECT_FALSE(runs_in_tf32(128, 80));  // 163 KiB of shared memory
  EXPECT_TRUE(runs_in_tf32(32, 86));
  EXPECT_FALSE(runs_in_tf32(64, 86));  // 99 KiB
}

TEST(FlashCudaBackend, HopperPlanDoesNotDependOnDeterminism) {
  AttentionProblem problem = Problem();
  problem.compute_capability = 90;
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    EXPECT_EQ(FlashCudaBackend().Plan(problem).backward_bytes,
              2 * 6 * 8 * (128 * 80 * 4 + 128 * 2 * 4) + 100 * 4);
  }
}

// The Hopper kernels have no soft cap; the others have kernels for 128 columns,
// which compute head dim 80.
TEST(FlashCudaBackend, ASoftCapRunsInThePortableKernelsOnHopper) {
  AttentionProblem problem = Problem();
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    const auto bytes = [&](int compute_capability, double soft_cap, int64_t d) {
      problem.compute_capability = compute_capability;
      problem.soft_cap = soft_cap;
      problem.d = d;
      return FlashCudaBackend().Plan(problem).backward_bytes;
    };
    EXPECT_EQ(bytes(90, 50, 80), bytes(80, 50, 80));
    EXPECT_EQ(bytes(90, 50, 80), bytes(80, 0, 128));
    EXPECT_NE(bytes(90, 50, 80), bytes(90, 0, 80));
  }
}

TEST(FlashCudaBackend, RefusesScalesThatAreNotPositive) {
  AttentionArgs args;
  args.q_bhsd = args.k_bgtd = args.v_bgtd = at::zeros({1, 1, 4, 8});
  AttentionOut out;
  for (const double scale : {0.0, -1.0}) {
    args.scale = scale;
    const absl::Status status = FlashCudaBackend().Forward(args, &out);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

class GpuFlashCudaBackend : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    AttentionProblem problem = Problem();
    problem.dtype = GetParam();
    problem.compute_capability = device->compute_capability;
    const absl::Status supports = FlashCudaBackend().Supports(problem);
    if (!supports.ok()) GTEST_SKIP() << supports.message();
    options_ = at::TensorOptions(device->device).dtype(GetParam());
  }

  at::TensorOptions options_;
};
INSTANTIATE_TEST_SUITE_P(Each, GpuFlashCudaBackend,
                         ::testing::Values(at::kBFloat16, at::kFloat));

// Sums in no fixed order differ between runs of this size. The deterministic
// kernels must repeat their results and agree with the other kernels, which may
// walk over the queries in another order.
TEST_P(GpuFlashCudaBackend, DeterministicGradientsRepeat) {
  const auto random = [&](int64_t heads, int64_t rows) {
    return at::randn({2, heads, rows, 80}, options_);
  };
  AttentionArgs args;
  args.q_bhsd = random(6, 1000);
  args.k_bgtd = random(3, 1000);
  args.v_bgtd = random(3, 1000);
  args.scale = 0.1;
  const at::Tensor d_o = random(6, 1000);
  AttentionOut out;
  ASSERT_TRUE(FlashCudaBackend().Forward(args, &out).ok());
  const auto gradients = [&](bool deterministic) {
    args.deterministic = deterministic;
    AttentionGrads grads{at::empty_like(args.q_bhsd),
                         at::empty_like(args.k_bgtd),
                         at::empty_like(args.v_bgtd)};
    const absl::Status ran =
        FlashCudaBackend().Backward(args, out, d_o, &grads);
    EXPECT_TRUE(ran.ok()) << ran;
    return grads;
  };
  const AttentionGrads first = gradients(true), sums = gradients(false);
  for (int run = 0; run < 3; ++run) {
    const AttentionGrads again = gradients(true);
    EXPECT_TRUE(at::equal(first.dq_bhsd, again.dq_bhsd));
    EXPECT_TRUE(at::equal(first.dk_bgtd, again.dk_bgtd));
    EXPECT_TRUE(at::equal(first.dv_bgtd, again.dv_bgtd));
  }
  const double tolerance = GetParam() == at::kFloat ? 1e-4 : 1e-2;
  EXPECT_TRUE(at::allclose(first.dq_bhsd, sums.dq_bhsd, tolerance, tolerance));
  EXPECT_TRUE(at::allclose(first.dk_bgtd, sums.dk_bgtd, tolerance, tolerance));
  EXPECT_TRUE(at::allclose(first.dv_bgtd, sums.dv_bgtd, tolerance, tolerance));
}

// Data and strides that are not multiples of 16 bytes, and an expanded
// gradient, give the results of contiguous tensors.
TEST_P(GpuFlashCudaBackend, SupportsAnyAlignment) {
  const auto shifted = [&] {
    return at::randn({1, 2, 50, 19}, options_).narrow(3, 1, 16);
  };
  AttentionArgs odd, plain;
  odd.q_bhsd = shifted();
  odd.k_bgtd = shifted();
  odd.v_bgtd = shifted();
  plain.q_bhsd = odd.q_bhsd.contiguous();
  plain.k_bgtd = odd.k_bgtd.contiguous();
  plain.v_bgtd = odd.v_bgtd.contiguous();
  odd.deterministic = plain.deterministic = true;
  const at::Tensor d_o =
      at::ones({1, 1, 1, 1}, options_).expand({1, 2, 50, 16});
  const auto gradients = [&](const AttentionArgs& args, const at::Tensor& of,
                             AttentionGrads grads) {
    AttentionOut out;
    EXPECT_TRUE(FlashCudaBackend().Forward(args, &out).ok());
    EXPECT_TRUE(FlashCudaBackend().Backward(args, out, of, &grads).ok());
    return grads;
  };
  const AttentionGrads actual =
      gradients(odd, d_o, {shifted(), shifted(), shifted()});
  const AttentionGrads expected =
      gradients(plain, d_o.contiguous(),
                {at::empty_like(plain.q_bhsd), at::empty_like(plain.k_bgtd),
                 at::empty_like(plain.v_bgtd)});
  EXPECT_TRUE(at::equal(actual.dq_bhsd, expected.dq_bhsd));
  EXPECT_TRUE(at::equal(actual.dk_bgtd, expected.dk_bgtd));
  EXPECT_TRUE(at::equal(actual.dv_bgtd, expected.dv_bgtd));
}

}  // namespace
}  // namespace tessera
