#include "framework/ops/linear/cublas_lt_product.h"

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/cuda/CUDAGraph.h"
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
using ::testing::Not;

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
      const auto multiply = [&] {
        const at::Tensor out = Matrices(p, p.m, p.c, false, out_options);
        out.copy_(before);
        EXPECT_TRUE(MultiplyByCublasLt(
            a, b, out,
            {.alpha = 0.5, .accumulate = accumulate, .tuned = tuned}));
        return out;
      };
      const at::Tensor out = multiply();
      EXPECT_TRUE(budget.Accepts(out));
      EXPECT_TRUE(BitEqual(out, multiply()));
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
  ASSERT_TRUE(MultiplyByCublasLt(a, b, out, {.tuned = true}));
  EXPECT_TRUE(at::allclose(out, at::mm(a, b), 1e-5, 1e-5));
  // What it does not support is left to others.
  const at::Tensor wide =
      at::empty({127, 96}, out.options().dtype(at::kDouble));
  EXPECT_FALSE(MultiplyByCublasLt(a, b, wide, {}));
  EXPECT_FALSE(MultiplyByCublasLt(a, b, out.t().contiguous().t(), {}));
}

TEST(GpuCublasLtProductOf, ChoicesOfACheckpointAreUsed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::randn({511, 72}, at::kCUDA);
  const at::Tensor b = at::randn({72, 264}, at::kCUDA);
  const at::Tensor out = at::empty({511, 264}, at::kCUDA);
  ASSERT_TRUE(MultiplyByCublasLt(a, b, out, {.tuned = true}));
  const nlohmann::json products = TunedProducts();
  bool found = false;
  for (const auto& [kind, algorithm] : products["algorithms"].items()) {
    found |= kind.find("511 x 264 x 72") != std::string::npos;
    EXPECT_EQ(algorithm.get<std::string>().size(), 128u) << kind;
  }
  EXPECT_TRUE(found) << products;
  SetTunedProducts(products);
  SetTunedProducts(nullptr);
  EXPECT_EQ(TunedProducts(), products);
}

// A product that accumulates cannot be timed, so its kind is tuned before.
TEST(GpuCublasLtProductOf, TuningTakesNoMemory) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::TensorOptions options =
      at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor a = at::randn({1019, 328}, options);
  const at::Tensor b = at::randn({328, 2056}, options);
  const at::Tensor out = at::zeros({1019, 2056}, options);
  ASSERT_TRUE(MultiplyByCublasLt(a, b, out, {}));  // takes cuBLAS's workspace
  const auto tuned = [] {
    const nlohmann::json products = TunedProducts();
    return products.is_null() ? "" : products["algorithms"].dump();
  };
  const int64_t before = CurrentMemory(a.device()).allocated;
  ResetPeakMemory(a.device());
  const auto add = [&] {
    out.zero_();
    EXPECT_TRUE(
        MultiplyByCublasLt(a, b, out, {.accumulate = true, .tuned = true}));
  };
  add();
  EXPECT_THAT(tuned(), Not(HasSubstr("1019 x 2056 x 328")));
  TuneProduct(a, b, out);
  EXPECT_THAT(tuned(), HasSubstr("1019 x 2056 x 328"));
  add();
  EXPECT_EQ(CurrentMemory(a.device()).peak_allocated, before);
  EXPECT_TRUE(at::allclose(out, at::mm(a, b), /*rtol=*/1e-2, /*atol=*/0.5));
}

// A checkpoint can hold any text. First a product that finds the names of the
// machine and of its kind, then another kind with the damaged table.
TEST(GpuCublasLtProductOf, DamagedChoicesAreNotUsed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::randn({509, 88}, at::kCUDA);
  const at::Tensor b = at::randn({88, 280}, at::kCUDA);
  const at::Tensor out = at::empty({509, 280}, at::kCUDA);
  ASSERT_TRUE(MultiplyByCublasLt(a, b, out, {.tuned = true}));
  nlohmann::json damaged = TunedProducts();
  std::string kind;
  for (const auto& [name, algorithm] : damaged["algorithms"].items()) {
    if (name.find("509 x 280 x 88") != std::string::npos) kind = name;
  }
  ASSERT_NE(kind, "");
  int rows = 499;
  for (const std::string& algorithm :
       {std::string(128, '0'), std::string(128, 'f'), std::string("00ff"),
        std::string()}) {
    std::string other = kind;
    other.replace(other.find("509"), 3, std::to_string(rows));
    damaged["algorithms"] = {{other, algorithm}};
    SetTunedProducts(damaged);
    const at::Tensor x = at::randn({rows, 88}, at::kCUDA);
    const at::Tensor y = at::empty({rows, 280}, at::kCUDA);
    ASSERT_TRUE(MultiplyByCublasLt(x, b, y, {.tuned = true})) << algorithm;
    EXPECT_TRUE(at::allclose(y, at::mm(x, b), 1e-4, 1e-4)) << algorithm;
    rows -= 2;
  }
  SetTunedProducts(nullptr);
}

TEST(GpuCublasLtProductOf, Fp32FollowsLibTorchsPrecisionSetting) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::randn({4, 512, 64}, at::kCUDA);
  const at::Tensor b = at::randn({4, 64, 512}, at::kCUDA);
  const at::Tensor oracle = at::bmm(a.to(at::kDouble), b.to(at::kDouble));
  const auto error = [&] {
    const at::Tensor out = at::empty({4, 512, 512}, at::kCUDA);
    MultiplyByCublasLt(a, b, out, {.tuned = true});
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
    MultiplyByCublasLt(a.narrow(1, 0, 50), b, other, {.tuned = true});
    Synchronize(a.device());
    graph.capture_begin();
    MultiplyByCublasLt(a, b, out, {.tuned = true});
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
