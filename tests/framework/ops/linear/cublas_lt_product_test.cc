#include "framework/ops/linear/cublas_lt_product.h"

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/cuda/CUDAGraph.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using tessera::testing::BitEqual;
using tessera::testing::ErrorBudget;
using ::testing::HasSubstr;

// out [N, M, C] = a [N, M, K] b [N, K, C].
struct ProductCase {
  int64_t n, m, c, k;
  bool a_transposed = false, b_transposed = false;
  // If `gap` > 0, operands and result are slices: `gap` elements lie between
  // rows, and the first element is `offset` elements after an aligned address.
  int64_t gap = 0, offset = 0;

  friend void PrintTo(const ProductCase& p, std::ostream* out) {
    *out << p.n << " x " << p.m << " x " << p.c << " x " << p.k
         << (p.a_transposed ? ", a transposed" : "")
         << (p.b_transposed ? ", b transposed" : "");
    if (p.gap > 0) *out << ", slices from element " << p.offset;
  }
};

at::Tensor Matrices(const ProductCase& p, int64_t rows, int64_t columns,
                    bool transposed, const at::TensorOptions& options) {
  if (transposed) std::swap(rows, columns);
  const at::Tensor x =
      at::randn({p.n, rows, columns + p.gap}, options.dtype(at::kFloat))
          .to(options.dtype())
          .slice(2, p.offset, p.offset + columns);
  return transposed ? x.transpose(1, 2) : x;
}

ProductChoices Tuned(const MatrixProduct& product,
                     const nlohmann::json& recorded = nullptr) {
  ProductChoices choices;
  ChooseProducts(
      {product},
      {.device = product.a.device(), .tune = true, .recorded = recorded},
      &choices);
  return choices;
}

// With the result in `out_dtype`, alone and added to another.
void ExpectProduct(const ProductCase& p, const at::TensorOptions& options,
                   at::ScalarType out_dtype) {
  at::manual_seed(7);
  const at::Tensor a = Matrices(p, p.m, p.k, p.a_transposed, options);
  const at::Tensor b = Matrices(p, p.k, p.c, p.b_transposed, options);
  const at::TensorOptions out_options = options.dtype(out_dtype);
  const at::Tensor before = Matrices(p, p.m, p.c, false, out_options);
  for (const bool accumulate : {false, true}) {
    SCOPED_TRACE(accumulate ? "accumulated" : "alone");
    at::Tensor oracle = 0.5 * at::bmm(a.to(at::kDouble), b.to(at::kDouble));
    if (accumulate) oracle += before;
    at::Tensor naive =
        0.5 * (out_dtype == a.scalar_type() ? at::bmm(a, b)
                                            : at::bmm(a, b, out_dtype));
    if (accumulate) naive += before;
    const ErrorBudget budget = ErrorBudget::AgainstBaseline(naive, oracle);
    for (const bool tuned : {true, false}) {
      SCOPED_TRACE(tuned ? "tuned" : "first");
      const ProductChoices choices =
          tuned ? Tuned({a, b, before}) : ProductChoices();
      const auto multiply = [&](int spared_multiprocessors = 0) {
        const at::Tensor out = Matrices(p, p.m, p.c, false, out_options);
        out.copy_(before);
        EXPECT_TRUE(MultiplyByCublasLt(
            a, b, out,
            {.accumulate = accumulate,
             .choices = &choices,
             .spared_multiprocessors = spared_multiprocessors},
            /*alpha=*/0.5));
        return out;
      };
      const at::Tensor out = multiply();
      EXPECT_TRUE(budget.Accepts(out));
      EXPECT_TRUE(BitEqual(out, multiply()));
      EXPECT_TRUE(BitEqual(out, multiply(/*spared_multiprocessors=*/24)));
    }
  }
}

const ProductCase kCases[] = {
    // Q K^T, P V and P^T dO of odd lengths and head dims.
    {.n = 6, .m = 1000, .c = 777, .k = 80, .b_transposed = true},
    {.n = 6, .m = 1000, .c = 80, .k = 777},
    {.n = 6, .m = 777, .c = 40, .k = 1000, .a_transposed = true},
    // Slices of a fused projection, aligned and unaligned.
    {.n = 3,
     .m = 127,
     .c = 129,
     .k = 64,
     .b_transposed = true,
     .gap = 128,
     .offset = 64},
    {.n = 3, .m = 129, .c = 96, .k = 127, .gap = 5, .offset = 3},
    // Sizes of 1, whose strides are meaningless.
    {.n = 64, .m = 1, .c = 1, .k = 8, .b_transposed = true},
    {.n = 2, .m = 1, .c = 64, .k = 1},
    {.n = 2, .m = 65, .c = 1, .k = 33, .a_transposed = true},
    // A product that cuBLAS splits along K.
    {.n = 1, .m = 64, .c = 64, .k = 40000}};

class GpuCublasLtProduct : public ::testing::TestWithParam<ProductCase> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    ASSERT_TRUE(OpenCudaDevice(0).ok());
  }
};

TEST_P(GpuCublasLtProduct, IsAsAccurateAsLibTorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(dtype);
    ExpectProduct(GetParam(), options, dtype);
    ExpectProduct(GetParam(), options, at::kFloat);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, GpuCublasLtProduct, ::testing::ValuesIn(kCases));

TEST(GpuCublasLtProductOf, TwoMatrices) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::randn({127, 40}, at::kCUDA);
  const at::Tensor b = at::randn({96, 40}, at::kCUDA).t();
  const at::Tensor out = at::empty({127, 96}, at::kCUDA);
  ASSERT_TRUE(MultiplyByCublasLt(a, b, out, {}));
  EXPECT_TRUE(at::allclose(out, at::mm(a, b), 1e-5, 1e-5));
  // What it does not support is left to others.
  const at::Tensor wide =
      at::empty({127, 96}, out.options().dtype(at::kDouble));
  EXPECT_FALSE(MultiplyByCublasLt(a, b, wide, {}));
  EXPECT_FALSE(MultiplyByCublasLt(a, b, out.t().contiguous().t(), {}));
}

TEST(GpuCublasLtProductOf, ChoicesOfACheckpointAreUsed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const MatrixProduct product = {at::randn({511, 72}, at::kCUDA),
                                 at::randn({72, 264}, at::kCUDA),
                                 at::empty({511, 264}, at::kCUDA)};
  const ProductChoices first = Tuned(product);
  const nlohmann::json& algorithms = first.record["algorithms"];
  ASSERT_EQ(algorithms.size(), 1u);
  EXPECT_THAT(algorithms.begin().key(), HasSubstr("511 x 264 x 72"));
  EXPECT_EQ(algorithms.begin()->get<std::string>().size(), 128u);
  const ProductChoices resumed = Tuned(product, first.record);
  EXPECT_EQ(resumed.record, first.record);
  EXPECT_THAT(resumed.summary, HasSubstr("0 algorithms timed"));
  ProductChoices proposals;
  ChooseProducts({product}, {.device = product.a.device()}, &proposals);
  EXPECT_NE(proposals.algorithms, nullptr);
  EXPECT_EQ(proposals.record, nullptr);
}

TEST(GpuCublasLtProductOf, TuningReturnsItsMemory) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const c10::Device device(at::kCUDA, 0);
  const at::TensorOptions meta = at::dtype(at::kBFloat16).device(at::kMeta);
  EmptyCache(device);
  const MemoryUse before = CurrentMemory(device);
  ResetPeakMemory(device);
  ProductChoices choices;
  // Sizes that no earlier run has timed.
  const int64_t rows = 1019 + absl::ToUnixSeconds(absl::Now()) % 3000;
  ChooseProducts({{at::empty({rows, 328}, meta), at::empty({328, 2056}, meta),
                   at::empty({rows, 2056}, meta)}},
                 {.device = device, .tune = true}, &choices);
  EXPECT_THAT(choices.summary, HasSubstr("1 algorithms timed"));
  EXPECT_GT(CurrentMemory(device).peak_allocated, before.allocated);
  EXPECT_EQ(CurrentMemory(device).allocated, before.allocated);
  EXPECT_EQ(CurrentMemory(device).reserved, before.reserved);
}

// A checkpoint can hold any text.
TEST(GpuCublasLtProductOf, DamagedChoicesAreNotUsed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::randn({509, 88}, at::kCUDA);
  const at::Tensor b = at::randn({88, 280}, at::kCUDA);
  const at::Tensor out = at::empty({509, 280}, at::kCUDA);
  nlohmann::json damaged = Tuned({a, b, out}).record;
  for (const std::string& algorithm :
       {std::string(128, '0'), std::string(128, 'f'), std::string("00ff"),
        std::string()}) {
    *damaged["algorithms"].begin() = algorithm;
    const ProductChoices choices = Tuned({a, b, out}, damaged);
    out.zero_();
    ASSERT_TRUE(MultiplyByCublasLt(a, b, out, {.choices = &choices}));
    EXPECT_TRUE(at::allclose(out, at::mm(a, b), 1e-4, 1e-4)) << algorithm;
  }
}

TEST(GpuCublasLtProductOf, Fp32FollowsLibTorchsPrecisionSetting) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::randn({4, 512, 64}, at::kCUDA);
  const at::Tensor b = at::randn({4, 64, 512}, at::kCUDA);
  const at::Tensor oracle = at::bmm(a.to(at::kDouble), b.to(at::kDouble));
  const auto error = [&] {
    const at::Tensor out = at::empty({4, 512, 512}, at::kCUDA);
    MultiplyByCublasLt(a, b, out, {});
    return (out - oracle).abs().max().item<double>();
  };
  const double fp32 = error();
  at::globalContext().setAllowTF32CuBLAS(true);
  const double tf32 = error();
  at::globalContext().setAllowTF32CuBLAS(false);
  EXPECT_LT(fp32, 1e-4);
  EXPECT_GT(tf32, 1e-3);
  EXPECT_EQ(error(), fp32);
}

TEST(GpuCublasLtProductOf, NewKindsCanBeCaptured) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const auto fill = [](const at::Tensor& x) { x.copy_(at::randn(x.sizes())); };
  const at::Tensor a = at::zeros({3, 211, 48}, at::kCUDA);
  const at::Tensor b = at::zeros({3, 48, 107}, at::kCUDA);
  const at::Tensor out = at::zeros({3, 211, 107}, at::kCUDA);
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    const at::Tensor other = at::empty({3, 50, 107}, at::kCUDA);
    MultiplyByCublasLt(a.narrow(1, 0, 50), b, other, {});
    Synchronize(a.device());
    graph.capture_begin();
    MultiplyByCublasLt(a, b, out, {});
    graph.capture_end();
    Synchronize(a.device());
  }
  fill(a);
  fill(b);
  graph.replay();
  EXPECT_TRUE(at::allclose(out, at::bmm(a, b), 1e-4, 1e-4));
  EXPECT_GT(out.abs().max().item<double>(), 1);
}

}  // namespace
}  // namespace tessera
