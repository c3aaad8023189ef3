#include "framework/ops/linear/few_rows.h"

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "framework/ops/linear/linear.h"
#include "framework/ops/residual/residual.h"
#include "framework/ops/rms_norm/rms_norm.h"
#include "framework/ops/swiglu/swiglu.h"
#include "framework/program/rewrites/fuse_ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using tessera::testing::ErrorBudget;
using ::testing::ElementsAre;

constexpr double kEps = 1e-5;

// Half of a transformer block, x + w2 swiglu(w13 norm(x)), for `tokens` of
// width 64.
Program HalfBlock(int64_t tokens, bool forward_only) {
  ProgramTarget target;
  target.device = {.device = at::Device(at::kCUDA, 0),
                   .compute_capability = 80};
  target.precision = PrecisionPolicy(PrecisionMode::kBf16);
  target.forward_only = forward_only;
  ProgramBuilder b(target);
  const auto weight = [&](const std::string& name, std::vector<int64_t> shape) {
    return b.Parameter({.name = name, .members = {{name, shape, Init::kOnes}}});
  };
  const Value x = b.Input("x", {{tokens, 1, 64}, at::kFloat});
  const Value y = RmsNorm(b, x, weight("gain", {64}), kEps);
  const Value h = SwiGlu(b, Linear(b, y, weight("w13", {2 * 40, 64})));
  b.Output(AddResidual(b, x, Linear(b, h, weight("w2", {64, 40}))));
  return std::move(b).Build().value();
}

std::vector<std::string> OpsOf(Program program) {
  const FusedProgram fused = FuseOps(
      std::move(program), [](Fusion fusion, const OpNode&, const OpNode&) {
        return fusion == Fusion::kNextToken;
      });
  std::vector<std::string> names;
  for (const OpNode& node : fused.program.ops()) {
    names.push_back(node.name + ": " + node.op->kernel());
  }
  return names;
}

TEST(FewRowsTest, FusesTheNormBeforeAndTheOpAfter) {
  EXPECT_THAT(OpsOf(HalfBlock(4, true)),
              ElementsAre("gain+w13+swiglu: few_rows", "w2+add: few_rows"));
}

TEST(FewRowsTest, ManyRowsAndTrainingHaveOtherKernels) {
  EXPECT_EQ(OpsOf(HalfBlock(5, true)).size(), 5u);
  EXPECT_EQ(OpsOf(HalfBlock(1, false)).size(), 5u);
}

TEST(FewRowsTest, TheRowsFitIntoTheSharedMemory) {
  const auto fits = [](int compute_capability, int64_t rows, int64_t in) {
    const DeviceInfo device = {.device = at::Device(at::kCUDA, 0),
                               .compute_capability = compute_capability};
    return IsFewRows(device, {{rows, in}, at::kHalf}, {{8, in}, at::kHalf},
                     at::kFloat);
  };
  EXPECT_TRUE(fits(90, 4, 18688));
  EXPECT_FALSE(fits(90, 4, 18696));
  EXPECT_TRUE(fits(80, 1, 28672));
  EXPECT_FALSE(fits(80, 2, 28672));
  EXPECT_TRUE(fits(89, 1, 8192));
  EXPECT_FALSE(fits(89, 2, 8192));
  EXPECT_FALSE(fits(90, 5, 8));
  EXPECT_FALSE(fits(90, 1, 12));
}

struct Case {
  int64_t rows, in, out;

  friend void PrintTo(const Case& c, std::ostream* to) {
    *to << c.rows << " x " << c.in << " x " << c.out;
  }
};

class GpuFewRowsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    const auto device = OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    const auto [rows, in, out] = GetParam();
    if (!IsFewRows(*device, {{rows, in}, at::kHalf}, {{out, in}, at::kHalf},
                   at::kHalf)) {
      GTEST_SKIP() << "x does not fit into this GPU's shared memory";
    }
    at::manual_seed(11);
  }

  static at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype,
                           double scale = 1) {
    const at::TensorOptions options = at::TensorOptions(at::kCUDA);
    return at::randn(shape, options.dtype(at::kFloat)).mul_(scale).to(dtype);
  }

  // The result of the separate ops in the dtypes of `t`, or all in FP64.
  static at::Tensor Plain(const FewRowsSpec& spec, const FewRowsTensors& t,
                          bool exact) {
    const at::ScalarType narrow = exact ? at::kDouble : t.weight.scalar_type();
    const at::ScalarType wide = exact ? at::kDouble : at::kFloat;
    const at::ScalarType result = exact ? at::kDouble : t.y.scalar_type();
    at::Tensor x = t.x.to(wide);
    if (spec.norm_eps.has_value()) {
      const at::Tensor squares = x.square().mean(-1, /*keepdim=*/true);
      x = x * (squares + *spec.norm_eps).rsqrt() * t.gain.to(wide);
    }
    at::Tensor y = at::matmul(x.to(narrow).to(wide), t.weight.to(wide).t());
    if (spec.after == AfterFewRows::kNothing) return y.to(result);
    y = y.to(narrow).to(wide);
    if (spec.after == AfterFewRows::kAdd) {
      return (t.residual.to(wide) + y).to(result);
    }
    const std::vector<at::Tensor> halves = y.chunk(2, -1);
    return (at::silu(halves[0]) * halves[1]).to(result);
  }

  static void ExpectAccurate(const FewRowsSpec& spec, at::ScalarType dtype,
                             at::ScalarType x_dtype, at::ScalarType y_dtype) {
    if constexpr (kCudaBuild) {
      const auto [rows, in, out] = GetParam();
      const bool swiglu = spec.after == AfterFewRows::kSwiGlu;
      FewRowsTensors t;
      t.x = Random({rows, in}, x_dtype, 3);
      t.weight = Random({swiglu ? 2 * out : out, in}, dtype, 0.1);
      // Every element is written, and nothing after the last row.
      const at::Tensor memory = at::full({rows + 1, out}, NAN, at::kCUDA);
      const at::Tensor written = memory.to(y_dtype);
      t.y = written.narrow(0, 0, rows);
      if (spec.norm_eps.has_value()) t.gain = Random({in}, at::kFloat);
      if (spec.after == AfterFewRows::kAdd) {
        t.residual = Random({rows, out}, y_dtype);
      }
      cuda::MultiplyFewRows(spec, t);
      EXPECT_TRUE(ErrorBudget::AgainstBaseline(Plain(spec, t, false),
                                               Plain(spec, t, true))
                      .Accepts(t.y));
      EXPECT_TRUE(written[rows].isnan().all().item<bool>());
    }
  }
};

TEST_P(GpuFewRowsTest, IsAsAccurateAsTheOpsItReplaces) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    ExpectAccurate({}, dtype, dtype, dtype);
    ExpectAccurate({}, dtype, dtype, at::kFloat);
    ExpectAccurate({.after = AfterFewRows::kAdd}, dtype, dtype, at::kFloat);
    ExpectAccurate({.after = AfterFewRows::kAdd}, dtype, dtype, dtype);
    ExpectAccurate({.after = AfterFewRows::kSwiGlu}, dtype, dtype, dtype);
  }
}

TEST_P(GpuFewRowsTest, NormalizesFirst) {
  constexpr auto kBf16 = at::kBFloat16, kFp32 = at::kFloat;
  ExpectAccurate({.norm_eps = kEps}, kBf16, kFp32, kBf16);
  ExpectAccurate({.norm_eps = kEps}, kBf16, kBf16, kFp32);
  ExpectAccurate({.norm_eps = kEps, .after = AfterFewRows::kSwiGlu}, kBf16,
                 kFp32, kBf16);
  ExpectAccurate({.norm_eps = kEps, .after = AfterFewRows::kAdd}, kBf16, kBf16,
                 kBf16);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuFewRowsTest,
    ::testing::Values(Case{1, 8, 127}, Case{1, 40, 31}, Case{1, 2560, 1000},
                      Case{1, 28672, 64}, Case{2, 1000, 96}, Case{3, 256, 7},
                      Case{3, 2048, 640}, Case{4, 10240, 80},
                      Case{4, 12288, 33}));

}  // namespace
}  // namespace tessera
