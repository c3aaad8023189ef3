// What every backend of the table must do, whatever it runs on.

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/attention_oracle.h"

namespace tessera {
namespace {

using ::tessera::testing::AttentionInputs;
using ::tessera::testing::AttentionMagnitudes;
using ::tessera::testing::AttentionResults;
using ::tessera::testing::EagerAttention;

enum class Values {
  kNormal,
  kHugeLogits,    // up to +-200
  kSubnormalKeys  // below the dtype's least normal number: uniform attention
};

struct Shape {
  int64_t b, s, t, h, g, d;
};

struct Case {
  const AttentionBackend* backend;
  Shape shape;
  MaskKind mask;
  at::ScalarType dtype;
  Values values = Values::kNormal;
};

std::string ToString(const Case& c) {
  const char* const values[] = {"", "_huge_logits", "_subnormal_keys"};
  return absl::StrCat(
      std::string(c.backend->name()), "_b", c.shape.b, "_s", c.shape.s, "_t",
      c.shape.t, "_h", c.shape.h, "_g", c.shape.g, "_d", c.shape.d,
      c.mask == MaskKind::kCausal ? "_causal_" : "_full_",
      c10::toString(c.dtype), values[static_cast<int>(c.values)]);
}

// For GoogleTest's messages.
void PrintTo(const Case& c, std::ostream* out) { *out << ToString(c); }

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return ToString(info.param);
}

AttentionProblem ProblemOf(const Case& c, const DeviceInfo& device) {
  AttentionProblem problem;
  problem.b = c.shape.b;
  problem.s = c.shape.s;
  problem.t = c.shape.t;
  problem.h = c.shape.h;
  problem.g = c.shape.g;
  problem.d = c.shape.d;
  problem.dtype = c.dtype;
  problem.mask = c.mask;
  problem.cuda = device.is_cuda();
  problem.compute_capability = device.compute_capability;
  return problem;
}

// [B, heads, S, D] as a slice of a fused [B, S, heads + 3, D] whose other
// heads hold NaN: reading past a slice shows.
at::Tensor FusedSlice(const at::Tensor& values_bhsd) {
  const int64_t heads = values_bhsd.size(1);
  const at::Tensor fused =
      at::full({values_bhsd.size(0), values_bhsd.size(2), heads + 3,
                values_bhsd.size(3)},
               std::numeric_limits<double>::quiet_NaN(), values_bhsd.options());
  const at::Tensor slice = fused.narrow(2, 1, heads).transpose(1, 2);
  slice.copy_(values_bhsd);
  return slice;
}

AttentionInputs MakeInputs(const Case& c, at::Device device) {
  at::manual_seed(20250101);
  const Shape& n = c.shape;
  const auto random = [&](int64_t heads, int64_t rows) {
    return at::randn({n.b, heads, rows, n.d}, at::kDouble);
  };
  at::Tensor q = random(n.h, n.s), k = random(n.g, n.t);
  AttentionInputs in;
  in.scale = 1 / std::sqrt(static_cast<double>(n.d));
  in.causal = c.mask == MaskKind::kCausal;
  if (c.values == Values::kHugeLogits) {
    const at::Tensor keys = k.repeat_interleave(n.h / n.g, 1);
    in.scale =
        200 / at::matmul(q, keys.transpose(2, 3)).abs().max().item<double>();
  } else if (c.values == Values::kSubnormalKeys) {
    k = k * (c.dtype == at::kHalf ? 1e-6 : 1e-40);
  }
  const auto place = [&](const at::Tensor& x) {
    return FusedSlice(x.to(c.dtype).to(device));
  };
  in.q = place(q);
  in.k = place(k);
  in.v = place(random(n.g, n.t));
  in.d_o = place(random(n.h, n.s));
  return in;
}

absl::Status RunBackend(const Case& c, const AttentionInputs& in,
                        AttentionResults* results) {
  AttentionArgs args;
  args.q_bhsd = in.q;
  args.k_bgtd = in.k;
  args.v_bgtd = in.v;
  args.scale = in.scale;
  args.mask = c.mask;
  args.wants_lse = true;
  AttentionOut out;
  absl::Status status = c.backend->Forward(args, &out);
  if (!status.ok()) return status;
  const auto nan_like = [](const at::Tensor& x) {
    return FusedSlice(
        at::full_like(x, std::numeric_limits<double>::quiet_NaN()));
  };
  AttentionGrads grads{nan_like(in.q), nan_like(in.k), nan_like(in.v)};
  *results = {out.o_bhsd, out.lse_bhs, grads.dq_bhsd, grads.dk_bgtd,
              grads.dv_bgtd};
  return c.backend->Backward(args, out, in.d_o, &grads);
}

// Unit roundoff; the least number with full precision.
double Roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    default:
      return 0x1p-8;  // BFloat16
  }
}
double LeastNormal(at::ScalarType dtype) {
  return dtype == at::kHalf ? 0x1p-14 : 0x1p-126;
}

std::vector<int64_t> IndexOf(int64_t flat, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (int64_t i = sizes.size() - 1; i >= 0; --i) {
    index[i] = flat % sizes[i];
    flat /= sizes[i];
  }
  return index;
}

struct Comparison {
  at::Tensor actual, baseline, exact, magnitude;
  bool cancels = false;  // nearly equal numbers, each rounded to the dtype
};

// Roundings of the widest arithmetic, relative to the magnitudes summed. FP32:
// ATen's softmax on a CPU takes exponentials to 20 units in the last place.
// FP64: the oracle rounds in each of its sums, too.
double Slack(const Comparison& c) {
  const at::ScalarType dtype = c.actual.scalar_type();
  const double relative = dtype == at::kDouble ? 64 * Roundoff(at::kDouble)
                                               : 24 * Roundoff(at::kFloat);
  return c.magnitude.max().item<double>() *
         (relative + (c.cancels ? Roundoff(dtype) : 0));
}

// max |actual - exact| <= 2 max |baseline - exact| + rounding of exact + slack,
// and equal infinities.
::testing::AssertionResult Conforms(const Comparison& c) {
  const at::Tensor actual = c.actual.to(at::kDouble).contiguous();
  // Equal infinities differ by nothing; NaN and unequal ones by infinity.
  const auto error_of = [&](const at::Tensor& x) {
    return (x - c.exact)
        .abs()
        .masked_fill(x == c.exact, 0)
        .nan_to_num(HUGE_VAL, HUGE_VAL, HUGE_VAL);
  };
  const at::Tensor error = error_of(actual).contiguous();
  const at::ScalarType dtype = c.actual.scalar_type();
  const at::Tensor finite = c.exact.masked_fill(c.exact.isinf(), 0);
  const double bound =
      2 * error_of(c.baseline.to(at::kDouble)).max().item<double>() +
      Roundoff(dtype) * finite.abs().max().item<double>() + Slack(c) +
      LeastNormal(dtype);
  const int64_t worst = error.argmax().item<int64_t>();
  const double worst_error = error.flatten()[worst].item<double>();
  const bool conforms = worst_error <= bound && std::isfinite(bound);
  if (conforms) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "worst at [" << absl::StrJoin(IndexOf(worst, error.sizes()), ", ")
         << "]: " << actual.flatten()[worst].item<double>() << ", exactly "
         << c.exact.contiguous().flatten()[worst].item<double>() << "; error "
         << worst_error << " > bound " << bound;
}

void ExpectConforms(const Case& c, const DeviceInfo& device) {
  const absl::Status supports = c.backend->Supports(ProblemOf(c, device));
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  const AttentionInputs in = MakeInputs(c, device.device);
  AttentionResults actual;
  const absl::Status ran = RunBackend(c, in, &actual);
  ASSERT_TRUE(ran.ok()) << ran.ToString();
  EXPECT_EQ(actual.o.scalar_type(), c.dtype);
  EXPECT_TRUE(actual.o.transpose(1, 2).is_contiguous());
  EXPECT_EQ(actual.lse.scalar_type(),
            c.dtype == at::kDouble ? at::kDouble : at::kFloat);
  const AttentionResults exact = EagerAttention(in, at::kDouble);
  const AttentionResults eager = EagerAttention(in, c.dtype);
  const AttentionResults sums = AttentionMagnitudes(in);
  EXPECT_TRUE(Conforms({actual.o, eager.o, exact.o, sums.o})) << "O";
  EXPECT_TRUE(Conforms({actual.lse, eager.lse, exact.lse, sums.lse})) << "L";
  EXPECT_TRUE(Conforms({actual.dq, eager.dq, exact.dq, sums.dq, true})) << "dQ";
  EXPECT_TRUE(Conforms({actual.dk, eager.dk, exact.dk, sums.dk, true})) << "dK";
  EXPECT_TRUE(Conforms({actual.dv, eager.dv, exact.dv, sums.dv})) << "dV";
}

// Every backend x shape x mask x dtype.
std::vector<Case> Cross(const std::vector<Shape>& shapes,
                        const std::vector<at::ScalarType>& dtypes,
                        Values values = Values::kNormal) {
  std::vector<Case> cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const Shape& shape : shapes) {
      for (const MaskKind mask : {MaskKind::kCausal, MaskKind::kFull}) {
        for (const at::ScalarType dtype : dtypes) {
          cases.push_back({backend, shape, mask, dtype, values});
        }
      }
    }
  }
  return cases;
}

// Lengths around the tiles of kernels x head dims, with batch sizes and head
// groupings taking turns.
std::vector<Shape> SquareShapes() {
  constexpr int64_t kLengths[] = {1, 2, 63, 64, 65, 127, 128, 129};
  constexpr int64_t kHeadDims[] = {8,  16, 32,  40,  64,  72,
                                   80, 96, 112, 128, 192, 256};
  constexpr int64_t kHeads[][2] = {{1, 1}, {2, 1}, {5, 1}, {3, 3}, {4, 2}};
  std::vector<Shape> shapes;
  for (const int64_t length : kLengths) {
    for (const int64_t d : kHeadDims) {
      const auto turn = static_cast<int64_t>(shapes.size());
      const auto& heads = kHeads[turn % 5];
      shapes.push_back({1 + turn % 4, length, length, heads[0], heads[1], d});
    }
  }
  return shapes;
}

// S < T; S > T, which has rows without a key; many heads; enough sequences for
// backends that treat many otherwise; long ones.
std::vector<Shape> OtherShapes() {
  return {
      {2, 1, 128, 2, 1, 64},   {1, 64, 129, 4, 2, 32},  {1, 65, 777, 5, 1, 80},
      {2, 129, 64, 2, 2, 32},  {1, 128, 1, 2, 1, 16},   {2, 100, 65, 4, 2, 128},
      {1, 64, 64, 25, 5, 40},  {1, 65, 65, 25, 25, 64}, {9, 17, 17, 2, 2, 16},
      {9, 20, 13, 4, 2, 8},    {9, 17, 17, 3, 1, 16},   {1, 777, 777, 2, 1, 64},
      {1, 1100, 530, 1, 1, 8}, {1, 530, 1100, 2, 2, 8}};
}

std::vector<Shape> ExtremeShapes() {
  return {{2, 65, 65, 2, 1, 64}, {1, 200, 130, 2, 2, 128}};
}

std::vector<Case> Join(const std::vector<std::vector<Case>>& lists) {
  std::vector<Case> all;
  for (const auto& list : lists)
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<Case> CpuCases() {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16};
  // BF16 products are slow on a CPU without units for them.
  std::vector<Shape> third;
  for (size_t i = 0; i < SquareShapes().size(); i += 3) {
    third.push_back(SquareShapes()[i]);
  }
  return Join({Cross(SquareShapes(), {at::kFloat}),
               Cross(third, {at::kBFloat16}), Cross(OtherShapes(), dtypes),
               Cross(OtherShapes(), {at::kDouble}),
               Cross(ExtremeShapes(), dtypes, Values::kHugeLogits),
               Cross(ExtremeShapes(), dtypes, Values::kSubnormalKeys)});
}

std::vector<Case> GpuCases() {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16,
                                              at::kHalf};
  const std::vector<Shape> training = {{2, 512, 512, 12, 12, 64},
                                       {1, 1024, 1024, 25, 25, 64},
                                       {1, 1024, 1024, 8, 8, 80},
                                       {1, 2048, 2048, 8, 2, 128}};
  return Join({Cross(SquareShapes(), dtypes), Cross(OtherShapes(), dtypes),
               Cross(training, dtypes),
               Cross(ExtremeShapes(), dtypes, Values::kHugeLogits),
               Cross(ExtremeShapes(), dtypes, Values::kSubnormalKeys)});
}

class Conformance : public ::testing::TestWithParam<Case> {};
TEST_P(Conformance, MatchesOracle) { ExpectConforms(GetParam(), CpuDevice()); }
INSTANTIATE_TEST_SUITE_P(Cpu, Conformance, ::testing::ValuesIn(CpuCases()),
                         CaseName);

class GpuConformance : public ::testing::TestWithParam<Case> {};
TEST_P(GpuConformance, MatchesOracle) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectConforms(GetParam(), *device);
}
INSTANTIATE_TEST_SUITE_P(All, GpuConformance, ::testing::ValuesIn(GpuCases()),
                         CaseName);

// CS336 assignment 2's own check: (4, 128, 64), FP32, 1e-2.
TEST(AttentionOf336, AgreesWithPlainAttention) {
  for (const AttentionBackend* backend : AttentionBackends()) {
    const Case c = {
        backend, {4, 128, 128, 1, 1, 64}, MaskKind::kFull, at::kFloat};
    if (!backend->Supports(ProblemOf(c, CpuDevice())).ok()) continue;
    const AttentionInputs in = MakeInputs(c, at::kCPU);
    AttentionResults actual;
    ASSERT_TRUE(RunBackend(c, in, &actual).ok());
    const AttentionResults plain = EagerAttention(in, at::kFloat);
    EXPECT_TRUE(at::allclose(actual.o, plain.o, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.lse, plain.lse, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.dq, plain.dq, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.dk, plain.dk, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.dv, plain.dv, 1e-2, 1e-2));
  }
}

// Plan() against the caching allocator's count, to 1 %.
void ExpectPlanHolds(const Case& c, const DeviceInfo& device) {
  const AttentionProblem problem = ProblemOf(c, device);
  const absl::Status supports = c.backend->Supports(problem);
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  const AttentionMemory plan = c.backend->Plan(problem);
  const AttentionInputs in = MakeInputs(c, device.device);
  AttentionResults unused;  // The first call allocates cuBLAS's workspace.
  ASSERT_TRUE(RunBackend(c, in, &unused).ok());
  unused = {};
  AttentionGrads grads{at::empty_like(in.q), at::empty_like(in.k),
                       at::empty_like(in.v)};
  AttentionArgs args{in.q, in.k, in.v, in.scale, c.mask};
  AttentionOut out;
  const auto allocated = [&] { return CurrentMemory(device.device).allocated; };
  const auto peak_of = [&](absl::FunctionRef<absl::Status()> run) {
    const int64_t before = allocated();
    ResetPeakMemory(device.device);
    EXPECT_TRUE(run().ok());
    return CurrentMemory(device.device).peak_allocated - before;
  };
  const int64_t before = allocated();
  const int64_t forward =
      peak_of([&] { return c.backend->Forward(args, &out); });
  const int64_t saved = allocated() - before;
  const int64_t backward =
      peak_of([&] { return c.backend->Backward(args, out, in.d_o, &grads); });
  EXPECT_NEAR(saved, plan.saved_bytes, 0.01 * plan.saved_bytes);
  const int64_t planned = plan.saved_bytes + plan.forward_bytes;
  EXPECT_NEAR(forward, planned, 0.01 * planned);
  EXPECT_NEAR(backward, plan.backward_bytes, 0.01 * plan.backward_bytes);
}

class GpuPlan : public ::testing::TestWithParam<Case> {};
TEST_P(GpuPlan, IsWhatTheAllocatorCounts) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectPlanHolds(GetParam(), *device);
}
// One launch a sequence; packed; grouped heads.
INSTANTIATE_TEST_SUITE_P(All, GpuPlan,
                         ::testing::ValuesIn(Cross({{4, 2048, 2048, 16, 16, 64},
                                                    {16, 2048, 2048, 8, 8, 128},
                                                    {4, 2048, 2048, 32, 8, 80}},
                                                   {at::kFloat,
                                                    at::kBFloat16})),
                         CaseName);

}  // namespace
}  // namespace tessera
