#include "framework/ops/linear/matrix_product.h"

#include <cmath>
#include <cstdint>
#include <ostream>
#include <vector>

#include "ATen/ATen.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using tessera::testing::BitEqual;
using tessera::testing::ErrorBudget;

// c [m, n] = a [m, k] b [k, n].
struct ProductCase {
  int64_t m, k, n;
  bool a_transposed = false, b_transposed = false;

  friend void PrintTo(const ProductCase& p, std::ostream* out) {
    *out << p.m << " x " << p.k << " x " << p.n
         << (p.a_transposed ? ", a transposed" : "")
         << (p.b_transposed ? ", b transposed" : "");
  }
};

// Rows of memory begin at multiples of 16 elements; NaN lies between them.
at::Tensor Matrix(int64_t rows, int64_t columns, bool transposed,
                  at::ScalarType dtype) {
  if (transposed) return Matrix(columns, rows, false, dtype).t();
  const at::Tensor memory = at::full({rows, (columns + 15) / 16 * 16}, NAN,
                                     at::TensorOptions(at::kCUDA).dtype(dtype));
  const at::Tensor matrix = memory.narrow(1, 0, columns);
  matrix.copy_(at::randn(matrix.sizes(), matrix.options().dtype(at::kFloat)));
  return matrix;
}

class GpuMatrixProduct : public ::testing::TestWithParam<ProductCase> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    ASSERT_TRUE(OpenCudaDevice(0).ok());
  }
};

// cuBLASLt has no fast kernel for these sizes (matrix_product.cc).
TEST_P(GpuMatrixProduct, OfTwoPartsIsAsAccurateAsLibTorch) {
  const ProductCase& p = GetParam();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    at::manual_seed(7);
    const at::Tensor a = Matrix(p.m, p.k, p.a_transposed, dtype);
    const at::Tensor b = Matrix(p.k, p.n, p.b_transposed, dtype);
    for (const at::ScalarType out_dtype : {dtype, at::kFloat}) {
      const at::Tensor before = Matrix(p.m, p.n, false, out_dtype);
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(accumulate ? "accumulated" : "alone");
        at::Tensor oracle = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        at::Tensor naive = at::mm(a, b).to(out_dtype);
        if (accumulate) {
          oracle += before;
          naive += before;
        }
        const auto multiply = [&] {
          const at::Tensor c = Matrix(p.m, p.n, false, out_dtype);
          c.copy_(before);
          Multiply(a, b, {.accumulate = accumulate}, c);
          return c;
        };
        const at::Tensor c = multiply();
        EXPECT_TRUE(ErrorBudget::AgainstBaseline(naive, oracle).Accepts(c));
        EXPECT_TRUE(BitEqual(c, multiply()));
        // Nothing is written between rows.
        EXPECT_TRUE(
            at::as_strided(c, {p.m, c.stride(0) - p.n}, {c.stride(0), 1}, p.n)
                .isnan()
                .all()
                .item<bool>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, GpuMatrixProduct,
    ::testing::Values(
        // Logits, and the gradients of their input and of the head's weight.
        ProductCase{1024, 512, 10001, false, true},
        ProductCase{1024, 10001, 512},
        ProductCase{10001, 1024, 512, true, false},
        // In every dimension at once.
        ProductCase{2047, 1025, 2051}, ProductCase{2047, 1025, 2051, true},
        ProductCase{2047, 1025, 2051, false, true}));

// cuBLASLt has no fast kernel for 50,257 words, so the last is apart.
TEST(MatrixProduct, IsListedAsItIsComputed) {
  const auto list = [](at::ScalarType dtype, int64_t offset = 0) {
    std::vector<MatrixProduct> products;
    AddProducts(
        {WithoutMemory({{4096, 2560}, dtype}),
         WithoutMemory({{50257, 2560}, dtype}).t(),
         WithoutMemory({{4096, 50264}, dtype}).narrow(1, offset, 50257)},
        &products);
    return products;
  };
  const std::vector<MatrixProduct> parts = list(at::kBFloat16);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].out.sizes(), at::IntArrayRef({4096, 1}));
  EXPECT_EQ(parts[0].b.storage_offset(), 50256 * 2560);
  EXPECT_EQ(parts[1].b.sizes(), at::IntArrayRef({2560, 50256}));
  EXPECT_EQ(parts[1].out.strides(), at::IntArrayRef({50264, 1}));
  // No part of an unaligned result would be fast.
  EXPECT_EQ(list(at::kBFloat16, /*offset=*/1).size(), 1u);
  EXPECT_TRUE(list(at::kFloat).empty());
}

}  // namespace
}  // namespace tessera
