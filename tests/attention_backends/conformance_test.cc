// Requirements for every backend of the table, on any device.

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/select_backend.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/attention_backends/allocation_meter.h"
#include "tests/attention_backends/attention_oracle.h"
#include "tests/attention_backends/conformance_cases.h"
#include "tests/attention_backends/error_bound.h"
#include "tests/attention_backends/guarded_tensor.h"

namespace tessera::testing {
namespace {

std::string CaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return info.param.ToString();
}

struct Inputs {
  GuardedTensor q, k, v, d_o;
  double scale = 1;
  at::Tensor documents, sinks;  // undefined unless the case has some
};

// Random values drawn on `drawn_on`; drawn on the CPU, they are the same for
// every device.
Inputs MakeInputs(const ConformanceCase& c, at::Device device,
                  at::Device drawn_on = at::kCPU) {
  at::manual_seed(20250101);
  const Shape& n = c.shape;
  const at::TensorOptions options(at::dtype(at::kDouble).device(drawn_on));
  const auto random = [&](int64_t heads, int64_t rows) {
    return at::randn({n.b, heads, rows, n.d}, options);
  };
  const at::Tensor q = random(n.h, n.s);
  at::Tensor k = random(n.g, n.t);
  double scale = 1 / std::sqrt(static_cast<double>(n.d));
  if (c.values == Values::kHugeLogits) {
    const at::Tensor keys = k.repeat_interleave(n.h / n.g, 1);
    scale =
        200 / at::matmul(q, keys.transpose(2, 3)).abs().max().item<double>();
  } else if (c.values == Values::kSubnormalKeys) {
    k = k * (c.dtype == at::kHalf ? 1e-6 : 1e-40);
  }
  const auto place = [&](const at::Tensor& x) {
    return GuardedTensor(x.to(c.dtype).to(device));
  };
  const at::Tensor v = random(n.g, n.t), d_o = random(n.h, n.s);
  at::Tensor documents;
  if (c.documents) documents = PackedDocuments(n.b, n.s).to(device);
  at::Tensor sinks;
  if (c.sinks) {  // some above the scores; the same number in each dtype
    const at::ScalarType dtype =
        c.dtype == at::kDouble ? at::kDouble : at::kFloat;
    sinks =
        (at::arange(n.h, at::dtype(dtype).device(device)) * 3).remainder(7) - 2;
  }
  return {place(q), place(k), place(v), place(d_o), scale, documents, sinks};
}

Inputs CopyOf(const Inputs& in) {
  const auto copy = [](const GuardedTensor& x) {
    return GuardedTensor(x.slice());
  };
  return {copy(in.q), copy(in.k),   copy(in.v), copy(in.d_o),
          in.scale,   in.documents, in.sinks};
}

AttentionInputs OracleInputs(const ConformanceCase& c, const Inputs& in) {
  return {in.q.slice(), in.k.slice(), in.v.slice(), in.d_o.slice(), in.scale,
          c.mask,       in.documents, in.sinks,     c.soft_cap};
}

AttentionArgs ArgsOf(const ConformanceCase& c, const Inputs& in) {
  AttentionArgs args;
  args.q_bhsd = in.q.slice();
  args.k_bgtd = in.k.slice();
  args.v_bgtd = in.v.slice();
  args.scale = in.scale;
  args.mask = c.mask;
  args.deterministic = c.deterministic;
  args.tf32 = c.tf32;
  args.documents = in.documents;
  args.sinks = in.sinks;
  args.soft_cap = c.soft_cap;
  return args;
}

// O and L filled with NaN, unless the backend allocates them. New memory may
// hold what another backend has computed from the same inputs, which would hide
// rows that are not written.
AttentionOut UnwrittenOut(const ConformanceCase& c, const Inputs& in) {
  const at::Tensor& q = in.q.slice();
  AttentionProblem problem = ProblemOf(ArgsOf(c, in));
  problem.compute_capability = ComputeCapability(q.device());
  const AttentionMemory memory = c.backend->Plan(problem);
  AttentionOut out;
  if (memory.allocates) return out;
  out.o_bhsd =
      at::full(q.transpose(1, 2).sizes(), NAN, q.options()).transpose(1, 2);
  if (memory.lse) {
    out.lse_bhs =
        at::full(memory.lse->shape, NAN, q.options().dtype(memory.lse->dtype));
  }
  return out;
}

// Runs forward and backward and checks that only the results are written.
void RunBackend(const ConformanceCase& c, const Inputs& in,
                AttentionResults* results) {
  AttentionArgs args = ArgsOf(c, in);
  args.wants_lse = true;
  AttentionOut out = UnwrittenOut(c, in);
  const absl::Status forward = c.backend->Forward(args, &out);
  ASSERT_TRUE(forward.ok()) << forward.ToString();
  const DenseBetweenNans o(out.o_bhsd);
  out.o_bhsd = o.tensor();
  std::optional<DenseBetweenNans> lse;
  if (out.lse_bhs.is_contiguous()) {
    out.lse_bhs = lse.emplace(out.lse_bhs).tensor();
  }

  const auto dq = GuardedTensor::Unwritten(in.q.slice());
  const auto dk = GuardedTensor::Unwritten(in.k.slice());
  const auto dv = GuardedTensor::Unwritten(in.v.slice());
  AttentionGrads grads{dq.slice(), dk.slice(), dv.slice()};
  if (c.sinks) grads.d_sinks = at::full_like(in.sinks, NAN);
  const absl::Status backward =
      c.backend->Backward(args, out, in.d_o.slice(), &grads);
  ASSERT_TRUE(backward.ok()) << backward.ToString();
  EXPECT_TRUE(dq.IsIntact() && dk.IsIntact() && dv.IsIntact());
  EXPECT_TRUE(o.IsUnchanged() && (!lse || lse->IsUnchanged()));
  EXPECT_TRUE(in.q.IsUnchanged() && in.k.IsUnchanged() && in.v.IsUnchanged() &&
              in.d_o.IsUnchanged());
  *results = {out.o_bhsd, out.lse_bhs, dq.slice(),
              dk.slice(), dv.slice(),  grads.d_sinks};
}

// Queries without a key: O = 0, L = -infinity, no gradient; exactly.
void ExpectBlindRowsAreEmpty(int64_t rows, const AttentionResults& actual) {
  if (rows == 0) return;
  EXPECT_TRUE((actual.o.narrow(2, 0, rows) == 0).all().item<bool>());
  EXPECT_TRUE((actual.lse.narrow(2, 0, rows) ==
               -std::numeric_limits<double>::infinity())
                  .all()
                  .item<bool>());
  EXPECT_TRUE((actual.dq.narrow(2, 0, rows) == 0).all().item<bool>());
}

void ExpectEqualBits(const AttentionResults& a, const AttentionResults& b) {
  EXPECT_TRUE(at::equal(a.o, b.o)) << "O";
  EXPECT_TRUE(at::equal(a.lse, b.lse)) << "L";
  EXPECT_TRUE(at::equal(a.dq, b.dq)) << "dQ";
  EXPECT_TRUE(at::equal(a.dk, b.dk)) << "dK";
  EXPECT_TRUE(at::equal(a.dv, b.dv)) << "dV";
  if (a.d_sinks.defined()) {
    EXPECT_TRUE(at::equal(a.d_sinks, b.d_sinks)) << "dz";
  }
}

// What the cases of a problem share. Drawing the inputs and computing what the
// results are compared with take most of a test's time.
struct SharedProblem {
  std::string name;
  Inputs inputs;  // backends get CopyOf() them
  AttentionResults exact, eager, sums;
};

// The problem of `c`; computed only if the previous case has another one.
const SharedProblem& ProblemOfCase(const ConformanceCase& c,
                                   at::Device device) {
  // Never destroyed: at exit, CUDA may end before it.
  static auto* const last = new std::optional<SharedProblem>;
  const std::string name = absl::StrCat(device.str(), "_", c.ProblemName());
  if (*last && (*last)->name == name) return **last;
  const Inputs in = MakeInputs(c, device);
  const AttentionInputs inputs = OracleInputs(c, in);
  return last->emplace(SharedProblem{
      name, in, EagerAttention(inputs, at::kDouble),
      c.tf32 ? EagerTf32Attention(inputs) : EagerAttention(inputs, c.dtype),
      AttentionMagnitudes(inputs)});
}

void ExpectConforms(const ConformanceCase& c, const DeviceInfo& device) {
  const absl::Status supports = c.backend->Supports(c.Problem(device));
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  const auto& [name, inputs, exact, eager, sums] =
      ProblemOfCase(c, device.device);
  const Inputs in = CopyOf(inputs);
  AttentionResults actual;
  RunBackend(c, in, &actual);
  if (::testing::Test::HasFatalFailure()) return;
  EXPECT_EQ(actual.o.scalar_type(), c.dtype);
  EXPECT_TRUE(actual.o.transpose(1, 2).is_contiguous());
  EXPECT_EQ(actual.lse.scalar_type(),
            c.dtype == at::kDouble ? at::kDouble : at::kFloat);
  if (!c.sinks) ExpectBlindRowsAreEmpty(c.BlindRows(), actual);

  EXPECT_TRUE(Conforms({actual.o, eager.o, exact.o, sums.o})) << "O";
  EXPECT_TRUE(Conforms({actual.lse, eager.lse, exact.lse, sums.lse})) << "L";
  const auto [queries, keys] =
      CancellingRows(c.shape.s, c.shape.t, c.mask, c.documents);
  EXPECT_TRUE(
      Conforms({actual.dq, eager.dq, exact.dq, sums.dq, queries, c.tf32}))
      << "dQ";
  EXPECT_TRUE(Conforms({actual.dk, eager.dk, exact.dk, sums.dk, keys, c.tf32}))
      << "dK";
  EXPECT_TRUE(Conforms({actual.dv, eager.dv, exact.dv, sums.dv})) << "dV";
  if (c.sinks) {
    Comparison d_sinks = {actual.d_sinks, eager.d_sinks, exact.d_sinks,
                          sums.d_sinks};
    d_sinks.num_terms = c.shape.b * c.shape.s * c.shape.d;
    d_sinks.terms = c.dtype;
    EXPECT_TRUE(Conforms(d_sinks)) << "dz";
  }
  if (!c.deterministic) return;
  AttentionResults again;
  RunBackend(c, in, &again);
  ExpectEqualBits(actual, again);
}

TEST(GuardedTensor, DetectsWrites) {
  const GuardedTensor guarded(at::ones({2, 3, 4, 8}));
  EXPECT_TRUE(guarded.IsUnchanged());
  // One row too many.
  const at::Tensor& slice = guarded.slice();
  slice.as_strided({2, 3, 5, 8}, slice.strides()).fill_(2);
  EXPECT_FALSE(guarded.IsIntact());
  const GuardedTensor inside(at::ones({2, 3, 4, 8}));
  inside.slice().fill_(2);
  EXPECT_TRUE(inside.IsIntact());
  EXPECT_FALSE(inside.IsUnchanged());
}

// Other values in the last document of each sequence change no bit of the
// others.
void ExpectDocumentsApart(ConformanceCase c, const DeviceInfo& device) {
  const absl::Status supports = c.backend->Supports(c.Problem(device));
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  Inputs in = MakeInputs(c, device.device);
  AttentionResults before, after;
  RunBackend(c, in, &before);
  const int64_t last = in.documents[0][0][c.shape.s - 1].item<int64_t>();
  ASSERT_GT(last, 0);
  const auto changed = [&](const GuardedTensor& x) {
    const at::Tensor y = x.slice().clone();
    y.narrow(2, last, c.shape.s - last).mul_(-3);
    return GuardedTensor(y);
  };
  Inputs other = {changed(in.q),   changed(in.k), changed(in.v),
                  changed(in.d_o), in.scale,      in.documents};
  RunBackend(c, other, &after);
  const auto first = [&](const at::Tensor& x) { return x.narrow(2, 0, last); };
  ExpectEqualBits({first(before.o), first(before.lse), first(before.dq),
                   first(before.dk), first(before.dv)},
                  {first(after.o), first(after.lse), first(after.dq),
                   first(after.dk), first(after.dv)});
  EXPECT_FALSE(at::equal(before.dk, after.dk));
}

std::vector<ConformanceCase> ApartCases() {
  std::vector<ConformanceCase> cases;
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const MaskSpec mask :
         {MaskSpec::Causal(), MaskSpec::Full(), MaskSpec::Window(30)}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        cases.push_back({.backend = backend,
                         .shape = {1, 300, 300, 2, 1, 64},
                         .mask = mask,
                         .dtype = dtype,
                         // Otherwise additions to dQ come in any order.
                         .deterministic = true,
                         .documents = true});
      }
    }
  }
  return cases;
}

class Documents : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(Documents, DoNotReachEachOther) {
  ExpectDocumentsApart(GetParam(), CpuDevice());
}
INSTANTIATE_TEST_SUITE_P(Cpu, Documents, ::testing::ValuesIn(ApartCases()),
                         CaseName);

class GpuDocuments : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(GpuDocuments, DoNotReachEachOther) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectDocumentsApart(GetParam(), *device);
}
INSTANTIATE_TEST_SUITE_P(All, GpuDocuments, ::testing::ValuesIn(ApartCases()),
                         CaseName);

// Brings the cases of each problem together, for ProblemOfCase().
std::vector<ConformanceCase> ByProblem(
    const std::vector<ConformanceCase>& cases) {
  std::multimap<std::string, ConformanceCase> by_problem;
  for (const ConformanceCase& c : cases) by_problem.emplace(c.ProblemName(), c);
  std::vector<ConformanceCase> all;
  for (const auto& [problem, c] : by_problem) all.push_back(c);
  return all;
}

class Conformance : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(Conformance, MatchesOracle) { ExpectConforms(GetParam(), CpuDevice()); }
INSTANTIATE_TEST_SUITE_P(Cpu, Conformance,
                         ::testing::ValuesIn(ByProblem(CpuCases())), CaseName);

class GpuConformance : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(GpuConformance, MatchesOracle) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectConforms(GetParam(), *device);
}
INSTANTIATE_TEST_SUITE_P(All, GpuConformance,
                         ::testing::ValuesIn(ByProblem(GpuCases())), CaseName);

// The check of CS336 assignment 2: (4, 128, 64), FP32, 1e-2.
void ExpectPlainAttentionOf336(const DeviceInfo& device) {
  for (const AttentionBackend* backend : AttentionBackends()) {
    SCOPED_TRACE(backend->name());
    const ConformanceCase c = {
        backend, {4, 128, 128, 1, 1, 64}, MaskSpec::Full(), at::kFloat};
    if (!backend->Supports(c.Problem(device)).ok()) continue;
    const Inputs in = MakeInputs(c, device.device);
    AttentionResults actual;
    RunBackend(c, in, &actual);
    const AttentionResults plain =
        EagerAttention(OracleInputs(c, in), at::kFloat);
    EXPECT_TRUE(at::allclose(actual.o, plain.o, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.lse, plain.lse, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.dq, plain.dq, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.dk, plain.dk, 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(actual.dv, plain.dv, 1e-2, 1e-2));
  }
}

// The assignment's other check: in addition to Q, K, V and O, flash attention
// saves one tensor of shape (4, 128).
void ExpectOneStatisticPerQueryOf336(const std::string& flash,
                                     const DeviceInfo& device) {
  ConformanceCase c;
  c.shape = {4, 128, 128, 1, 1, 64};
  c.mask = MaskSpec::Full();
  const auto choice = SelectBackend({.name = flash}, c.Problem(device));
  ASSERT_TRUE(choice.ok()) << choice.status();
  const Inputs in = MakeInputs(c, device.device);
  AttentionOut out;
  ASSERT_TRUE(choice->backend->Forward(ArgsOf(c, in), &out).ok());
  EXPECT_TRUE(out.saved.empty());
  const at::Tensor lse = out.lse_bhs.squeeze(1);
  EXPECT_EQ(lse.sizes(), at::IntArrayRef({4, 128}));
  const AttentionResults plain =
      EagerAttention(OracleInputs(c, in), at::kFloat);
  EXPECT_TRUE(at::allclose(lse, plain.lse.squeeze(1), 1e-2, 1e-2));
}

TEST(AttentionOf336, AgreesWithPlainAttention) {
  ExpectPlainAttentionOf336(CpuDevice());
}

TEST(AttentionOf336, FlashTiledSavesOneStatisticPerQuery) {
  ExpectOneStatisticPerQueryOf336("FLASH_TILED", CpuDevice());
}

TEST(GpuAttentionOf336, AgreesAndFlashSavesOneStatisticPerQuery) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectPlainAttentionOf336(*device);
  for (const char* flash : {"FLASH_TILED", "FLASH_CUDA"}) {
    SCOPED_TRACE(flash);
    ExpectOneStatisticPerQueryOf336(flash, *device);
  }
}

// Checks that Plan() agrees with the allocator's count within 1 %.
void ExpectPlanHolds(const ConformanceCase& c, const DeviceInfo& device) {
  const AttentionProblem problem = c.Problem(device);
  const absl::Status supports = c.backend->Supports(problem);
  if (!supports.ok()) GTEST_SKIP() << supports.message();
  const AttentionMemory plan = c.backend->Plan(problem);
  // The values do not matter; drawing them on the CPU would take seconds.
  const Inputs in = MakeInputs(c, device.device, device.device);
  {  // The first call allocates cuBLAS's workspace.
    AttentionResults unused;
    RunBackend(c, in, &unused);
    if (::testing::Test::HasFatalFailure()) return;
  }
  const AttentionArgs args = ArgsOf(c, in);
  AttentionGrads grads{at::empty_like(args.q_bhsd), at::empty_like(args.k_bgtd),
                       at::empty_like(args.v_bgtd)};
  // Strided like the gradient of an output projection.
  const at::Tensor d_o =
      in.d_o.slice().transpose(1, 2).contiguous().transpose(1, 2);
  AttentionOut out;
  AllocationMeter meter(device.device);
  const auto peak_of = [&](absl::FunctionRef<absl::Status()> run) {
    const int64_t before = meter.current();
    meter.ResetPeak();
    EXPECT_TRUE(run().ok());
    return meter.peak() - before;
  };
  const int64_t before = meter.current();
  const int64_t forward =
      peak_of([&] { return c.backend->Forward(args, &out); });
  ASSERT_TRUE(out.o_bhsd.defined());
  const int64_t saved = meter.current() - before;
  const int64_t backward =
      peak_of([&] { return c.backend->Backward(args, out, d_o, &grads); });
  EXPECT_NEAR(saved, plan.saved_bytes, 0.01 * plan.saved_bytes);
  const int64_t planned = plan.saved_bytes + plan.forward_bytes;
  EXPECT_NEAR(forward, planned, 0.01 * planned);
  EXPECT_NEAR(backward, plan.backward_bytes, 0.01 * plan.backward_bytes);

  AttentionProblem inference = problem;
  inference.needs_grad = false;
  const AttentionMemory without_grad = c.backend->Plan(inference);
  EXPECT_EQ(without_grad.saved_bytes, 0);
  out = AttentionOut();
  const int64_t whole = peak_of([&] { return c.backend->Forward(args, &out); });
  EXPECT_NEAR(whole, out.o_bhsd.nbytes() + without_grad.forward_bytes,
              0.01 * whole);
}

class Plan : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(Plan, AgreesWithTheAllocator) {
  ExpectPlanHolds(GetParam(), CpuDevice());
}
INSTANTIATE_TEST_SUITE_P(Cpu, Plan, ::testing::ValuesIn(CpuPlanCases()),
                         CaseName);

class GpuPlan : public ::testing::TestWithParam<ConformanceCase> {};
TEST_P(GpuPlan, AgreesWithTheAllocator) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const absl::StatusOr<DeviceInfo> device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectPlanHolds(GetParam(), *device);
}
INSTANTIATE_TEST_SUITE_P(All, GpuPlan, ::testing::ValuesIn(PlanCases()),
                         CaseName);

}  // namespace
}  // namespace tessera::testing
