// The parts of COMPILED_FUSED, and its results at sizes that the conformance
// suite does not reach.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/status/status.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/compiled_fused/banded_product.h"
#include "attention_backends/compiled_fused/compiled_fused_backend.h"
#include "attention_backends/compiled_fused/softmax.h"
#include "attention_backends/compiled_fused/softmax_spec.h"
#include "attention_backends/naive/naive_backend.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::fused {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

AttentionProblem GpuProblem() {
  AttentionProblem problem;
  problem.b = 8;
  problem.s = problem.t = 16384;
  problem.h = problem.g = 1;
  problem.d = 64;
  problem.dtype = at::kBFloat16;
  problem.cuda = true;
  problem.compute_capability = 90;
  return problem;
}

std::string Refusal(const AttentionProblem& problem) {
  return std::string(CompiledFusedBackend().Supports(problem).message());
}

TEST(CompiledFusedBackend, SaysWhyItRefuses) {
  EXPECT_EQ(Refusal(GpuProblem()), "");
  AttentionProblem problem = GpuProblem();
  problem.compute_capability = 75;
  EXPECT_THAT(Refusal(problem),
              HasSubstr("needs compute capability 8.0 or newer; this GPU has "
                        "7.5: use a newer GPU"));
  problem = GpuProblem();
  problem.dtype = at::kDouble;
  EXPECT_THAT(Refusal(problem), HasSubstr("not in Double on a GPU"));
  problem = GpuProblem();
  problem.t = (int64_t{1} << 30) + 1;
  EXPECT_THAT(Refusal(problem), HasSubstr("smaller batch or context"));
  problem = GpuProblem();
  problem.b = int64_t{1} << 20;
  EXPECT_THAT(Refusal(problem), HasSubstr("17179869184 queries"));
}

TEST(CompiledFusedBackend, PlansOneSquareTensorAndO) {
  const AttentionMemory memory = CompiledFusedBackend().Plan(GpuProblem());
  const int64_t square = int64_t{8} * 16384 * 16384 * 2;
  EXPECT_EQ(memory.saved_bytes, square + int64_t{8} * 16384 * 64 * 2);
  EXPECT_EQ(memory.forward_bytes, 0);
  EXPECT_EQ(memory.backward_bytes, square);
}

// Every element of a row belongs to one thread, whatever the length.
TEST(SoftmaxGeometry, CoversRows) {
  std::vector<int64_t> lengths = {4096,  6006,  8192,  12288, 16384,  16392,
                                  32767, 32768, 32769, 65536, 1 << 20};
  for (int64_t length = 1; length <= 2050; ++length) lengths.push_back(length);
  for (const FloatType type : {FloatType::kFloat, FloatType::kBFloat16}) {
    const int bytes = type == FloatType::kFloat ? 4 : 2;
    for (const int64_t keys : lengths) {
      const SoftmaxGeometry g = GeometryOf({type, {64, keys, true, 64}});
      SCOPED_TRACE(keys);
      EXPECT_EQ(keys % g.pack, 0);
      EXPECT_TRUE(g.pack * bytes == 16 || keys % (2 * g.pack) != 0);
      EXPECT_LE(g.row_threads, 1024);
      EXPECT_EQ(g.row_threads & (g.row_threads - 1), 0);
      EXPECT_EQ(g.block_threads % g.row_threads, 0);
      EXPECT_TRUE(g.row_threads == 32 || g.rows_per_block() == 1);
      EXPECT_LE(g.row_packs * g.pack, 32);
      const int64_t held = int64_t{g.row_packs} * g.row_threads * g.pack;
      if (keys % g.pack == 0 && keys <= 1024 * (32 / g.pack) * g.pack) {
        EXPECT_GE(held, keys);
        EXPECT_LT(held - g.row_threads * g.pack, keys);
      } else {
        EXPECT_EQ(g.row_packs, 0);
      }
      const int64_t chunk = int64_t{g.chunk_packs} * 32 * g.pack;
      EXPECT_GE(g.chunks * chunk, keys);
      EXPECT_LT((g.chunks - 1) * chunk, keys);
    }
  }
}

TEST(MaskOf, MakesBandsThatFillTheDevice) {
  AttentionProblem problem = GpuProblem();
  const RowMask bands = fused::MaskOf(problem);
  EXPECT_EQ(bands.bands(), 4);
  EXPECT_EQ(bands.band_rows, 4096);
  EXPECT_EQ(bands.Written(0), 4096);
  EXPECT_EQ(bands.Written(4096), 8192);
  EXPECT_EQ(bands.Written(16383), 16384);
  EXPECT_EQ(bands.Visible(4096), 4097);
  problem.s = problem.t = 4096;  // bands of 2048 rows would not fill it
  EXPECT_EQ(fused::MaskOf(problem).bands(), 1);
  problem = GpuProblem();  // a launch per sequence
  problem.b = 4;
  problem.s = problem.t = 2048;
  problem.h = problem.g = 16;
  EXPECT_EQ(fused::MaskOf(problem).bands(), 1);
  problem = GpuProblem();
  problem.mask = MaskSpec::Full();
  EXPECT_EQ(fused::MaskOf(problem).bands(), 1);
  problem = GpuProblem();
  problem.h = 2;  // grouped
  EXPECT_EQ(fused::MaskOf(problem).bands(), 1);
  problem = GpuProblem();
  problem.t = problem.s - 1;  // has a query without a key
  EXPECT_EQ(fused::MaskOf(problem).bands(), 1);
}

// 1 where query i sees key j.
at::Tensor Seen(const RowMask& mask) {
  return at::ones({mask.queries, mask.keys}, at::kDouble)
      .tril_(mask.keys - mask.queries);
}

// Sets the scores that bands skip, which may hold anything, to NaN.
at::Tensor WithNansBehindBands(const RowMask& mask, const at::Tensor& n2) {
  at::Tensor result = n2.clone();
  for (int64_t i = 0; i < mask.queries; ++i) {
    result.select(2, i)
        .narrow(-1, mask.Written(i), mask.keys - mask.Written(i))
        .fill_(kNan);
  }
  return result;
}

// [B, H, rows, D] as a slice of a fused projection.
at::Tensor HeadSlice(int64_t b, int64_t h, int64_t rows, int64_t d) {
  return at::randn({b, rows, 3 * h, d}, at::kDouble)
      .narrow(2, h, h)
      .transpose(1, 2);
}

struct BandedCase {
  int64_t b, h, s, t, band_rows;
};
class BandedProductsTest : public ::testing::TestWithParam<BandedCase> {};
TEST_P(BandedProductsTest, EqualUnbandedProducts) {
  const BandedCase& c = GetParam();
  constexpr int64_t kD = 8;
  const RowMask mask = {c.s, c.t, true, c.band_rows};
  ASSERT_GT(mask.bands(), 1);
  const at::Tensor x = HeadSlice(c.b, c.h, c.s, kD);
  const at::Tensor y = HeadSlice(c.b, c.h, c.t, kD);
  const at::Tensor seen = Seen(mask);

  const at::Tensor n2 = at::full({c.b, c.h, c.s, c.t}, kNan, at::kDouble);
  const BandedProducts products(mask, MultiplyBatch);
  products.MultiplyIntoScores(x, y, 0.5, n2);
  const at::Tensor scores = 0.5 * at::matmul(x, y.transpose(2, 3));
  EXPECT_TRUE(at::equal(n2.isnan(), WithNansBehindBands(mask, scores).isnan()));
  EXPECT_TRUE(at::allclose(n2.masked_fill(seen == 0, 0), scores * seen));

  const at::Tensor p = WithNansBehindBands(mask, scores * seen);
  const at::Tensor by_keys = at::full_like(x, kNan);
  products.MultiplyByKeys(p, y, 2, by_keys);
  EXPECT_TRUE(at::allclose(by_keys, 2 * at::matmul(scores * seen, y)));
  const at::Tensor by_queries = HeadSlice(c.b, c.h, c.t, kD);
  products.MultiplyByQueries(p, x, 2, by_queries);
  EXPECT_TRUE(at::allclose(by_queries,
                           2 * at::matmul((scores * seen).transpose(2, 3), x)));
}
// Bands that divide the queries and bands that do not; more keys than queries;
// one matrix per sequence; one product per sequence; packed operands.
INSTANTIATE_TEST_SUITE_P(Each, BandedProductsTest,
                         ::testing::Values(BandedCase{2, 1, 128, 128, 64},
                                           BandedCase{1, 3, 130, 130, 64},
                                           BandedCase{2, 2, 100, 231, 32},
                                           BandedCase{6, 2, 70, 70, 16},
                                           BandedCase{6, 1, 65, 66, 64}));

// Two sequences of two heads that share a key head, as slices of a projection.
TEST(CompiledFusedProducts, AreThoseOfBothPasses) {
  const at::TensorOptions meta = at::dtype(at::kBFloat16).device(at::kMeta);
  const at::Tensor qkv = at::empty({2, 96, 4, 40}, meta).transpose(1, 2);
  AttentionArgs args;
  args.q_bhsd = qkv.narrow(1, 0, 2);
  args.k_bgtd = qkv.narrow(1, 2, 1);
  args.v_bgtd = qkv.narrow(1, 3, 1);
  const std::vector<MatrixProduct> products = CompiledFusedBackend().Products(
      args, {args.q_bhsd, args.k_bgtd, args.v_bgtd});
  const std::vector<std::vector<int64_t>> results = {{2, 192, 96}, {2, 192, 40},
                                                     {2, 96, 40},  {2, 192, 96},
                                                     {2, 192, 40}, {2, 96, 40}};
  ASSERT_EQ(products.size(), results.size());
  for (size_t i = 0; i < products.size(); ++i) {
    const MatrixProduct& p = products[i];
    EXPECT_EQ(p.out.sizes(), at::IntArrayRef(results[i])) << i;
    EXPECT_EQ(p.a.size(2), p.b.size(1)) << i;
    EXPECT_TRUE(p.a.is_meta() && p.b.is_meta() && p.out.is_meta()) << i;
  }
  // K is read in place, and dV and dK are written there.
  EXPECT_EQ(products[0].b.strides(), at::IntArrayRef({96 * 160, 1, 160}));
  EXPECT_EQ(products[2].out.stride(1), 160);
  EXPECT_EQ(products[5].out.storage_offset(), 2 * 40);
}

class HostSoftmax : public ::testing::TestWithParam<at::ScalarType> {};
TEST_P(HostSoftmax, AgreesWithAten) {
  const double tolerance = GetParam() == at::kDouble  ? 1e-14
                           : GetParam() == at::kFloat ? 5e-7
                                                      : 4e-3;
  for (const RowMask& mask :
       {RowMask{33, 33, true, 33}, RowMask{40, 27, true, 40},
        RowMask{20, 1000, false, 20}, RowMask{130, 140, true, 64}}) {
    const at::Tensor s =
        (at::randn({2, 3, mask.queries, mask.keys}) * 10).to(GetParam());
    const at::Tensor p = WithNansBehindBands(mask, s);
    const at::ScalarType statistic =
        GetParam() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor lse = at::empty({2, 3, mask.queries}, statistic);
    ASSERT_TRUE(SoftmaxInPlace(mask, p, lse).ok());
    const at::Tensor hidden =
        mask.causal ? Seen(mask) == 0 : at::zeros({1}, at::kBool);
    const at::Tensor masked =
        s.to(at::kDouble)
            .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const at::Tensor exact = at::softmax(masked, -1).nan_to_num(0);
    const at::Tensor wanted = WithNansBehindBands(mask, exact);
    EXPECT_TRUE(at::allclose(p.to(at::kDouble), wanted, tolerance, tolerance,
                             /*equal_nan=*/true));
    EXPECT_TRUE(at::allclose(lse.to(at::kDouble), masked.logsumexp(-1),
                             tolerance, tolerance));

    const at::Tensor d_o = at::randn({2, 3, mask.queries, 8}).to(GetParam());
    const at::Tensor o =
        at::randn({2, mask.queries, 3, 8}).to(GetParam()).transpose(1, 2);
    const at::Tensor d_p = at::randn_like(s);
    const at::Tensor rowsum =
        (d_o.to(at::kDouble) * o.to(at::kDouble)).sum(-1, true);
    const at::Tensor d_exact = WithNansBehindBands(
        mask, p.to(at::kDouble).nan_to_num(0) * (d_p.to(at::kDouble) - rowsum));
    const at::Tensor d_s = WithNansBehindBands(mask, d_p);
    ASSERT_TRUE(SoftmaxBackwardInPlace(mask, p, d_o, o, d_s).ok());
    EXPECT_TRUE(at::allclose(d_s.to(at::kDouble), d_exact, tolerance,
                             tolerance * 8, /*equal_nan=*/true));
  }
}
INSTANTIATE_TEST_SUITE_P(Each, HostSoftmax,
                         ::testing::Values(at::kFloat, at::kDouble,
                                           at::kBFloat16, at::kHalf));

// As in ATen, a row with a score that is NaN or infinity is NaN, and a score of
// -infinity has no weight.
TEST(HostSoftmaxRow, KeepsNonFiniteScores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t t : {5, 40}) {
    const at::Tensor s = at::zeros({1, 1, 5, t});
    s[0][0][0][2] = kNan;
    s[0][0][1][2] = kInfinity;
    s[0][0][2][2] = -kInfinity;
    s[0][0][3].fill_(kNan);
    s[0][0][4].fill_(-kInfinity);
    s[0][0][4][t - 1] = kNan;
    const at::Tensor p = s.clone();
    ASSERT_TRUE(SoftmaxInPlace({5, t, false, 5}, p, at::Tensor()).ok());
    EXPECT_TRUE(at::allclose(p, at::softmax(s, -1), 1e-6, 1e-6, true)) << p;
  }
}

// GPU cases: rows in two passes; CUDA blocks of 1024 threads; bands; grouped
// heads with causal masks; packs of one element.
struct GpuCase {
  int64_t b, h, g, s, t, d;
  at::ScalarType dtype;
};
class GpuCompiledFused : public ::testing::TestWithParam<GpuCase> {};

struct Results {
  AttentionOut out;
  AttentionGrads grads;
};

void RunBackend(const AttentionBackend& backend, const AttentionArgs& args,
                const at::Tensor& d_o, Results* results) {
  const absl::Status forward = backend.Forward(args, &results->out);
  ASSERT_TRUE(forward.ok()) << forward;
  results->grads = {at::empty_like(args.q_bhsd), at::empty_like(args.k_bgtd),
                    at::empty_like(args.v_bgtd)};
  const absl::Status backward =
      backend.Backward(args, results->out, d_o, &results->grads);
  ASSERT_TRUE(backward.ok()) << backward;
}

TEST_P(GpuCompiledFused, AgreesWithNaive) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const GpuCase& c = GetParam();
  at::manual_seed(7);
  const auto random = [&](int64_t heads, int64_t rows) {
    return at::randn({c.b, rows, 3 * heads, c.d},
                     at::TensorOptions(at::kCUDA).dtype(c.dtype))
        .narrow(2, heads, heads)
        .transpose(1, 2);
  };
  AttentionArgs args;
  args.q_bhsd = random(c.h, c.s);
  args.k_bgtd = random(c.g, c.t);
  args.v_bgtd = random(c.g, c.t);
  args.scale = 1 / std::sqrt(static_cast<double>(c.d));
  args.wants_lse = true;
  const at::Tensor d_o = random(c.h, c.s);
  Results ours, naive;
  RunBackend(CompiledFusedBackend(), args, d_o, &ours);
  if (HasFatalFailure()) return;
  RunBackend(NaiveBackend(), args, d_o, &naive);
  if (HasFatalFailure()) return;
  const double tolerance = c.dtype == at::kFloat ? 2e-5 : 2e-2;
  const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
    const double scale = std::max(1e-2, b.abs().max().item<double>());
    return at::allclose(a, b, 0, tolerance * scale);
  };
  EXPECT_TRUE(close(ours.out.o_bhsd, naive.out.o_bhsd));
  EXPECT_TRUE(at::allclose(ours.out.lse_bhs, naive.out.lse_bhs, 0, tolerance));
  EXPECT_TRUE(close(ours.grads.dq_bhsd, naive.grads.dq_bhsd));
  EXPECT_TRUE(close(ours.grads.dk_bgtd, naive.grads.dk_bgtd));
  EXPECT_TRUE(close(ours.grads.dv_bgtd, naive.grads.dv_bgtd));
}
INSTANTIATE_TEST_SUITE_P(
    All, GpuCompiledFused,
    ::testing::Values(GpuCase{1, 2, 2, 33, 40000, 64, at::kBFloat16},
                      GpuCase{1, 2, 2, 33, 40000, 64, at::kFloat},
                      GpuCase{1, 1, 1, 65, 40001, 32, at::kHalf},
                      GpuCase{1, 2, 1, 129, 32768, 64, at::kBFloat16},
                      GpuCase{1, 1, 1, 100, 16384, 128, at::kFloat},
                      GpuCase{8, 1, 1, 8192, 8192, 64, at::kBFloat16},
                      GpuCase{8, 1, 1, 8192, 8192, 16, at::kFloat},
                      GpuCase{4, 16, 16, 1024, 1024, 64, at::kBFloat16},
                      GpuCase{6, 16, 16, 1000, 1032, 64, at::kHalf}));

}  // namespace
}  // namespace tessera::fused
