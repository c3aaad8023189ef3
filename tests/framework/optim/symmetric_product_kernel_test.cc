#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/attention_backends/flash_cuda/emulation/emulated_cuda.h"
#include "tests/testing/error_budget.h"

// This header uses the declarations above.
#include "framework/optim/symmetric_product_kernel.h"

namespace tessera {
namespace {

using testing::BitEqual;
using testing::ErrorBudget;

// The CUDA kernel, on a CPU: less than a tile, tiles across the edges, mirror
// images.
TEST(SymmetricProductKernel, EqualsFp64) {
  struct Shape {
    int64_t count, n, k;
  };
  for (const Shape& shape : std::vector<Shape>{
           {2, 8, 8}, {3, 136, 64}, {1, 264, 72}, {1, 520, 136}}) {
    for (const bool transposed : {false, true}) {
      at::manual_seed(7);
      const at::Tensor x =
          at::randn({shape.count, shape.n, shape.k}).to(at::kHalf);
      at::Tensor c = at::randn({shape.count, shape.n, shape.n});
      c = (c + c.transpose(1, 2)).to(at::kHalf).contiguous();
      const at::Tensor stored = transposed ? x.transpose(1, 2).contiguous() : x;
      at::Tensor d = at::full_like(c, NAN);
      const SymmetricProductParams params = {.count = shape.count,
                                             .n = shape.n,
                                             .k = shape.k,
                                             .transposed = transposed,
                                             .a = stored.const_data_ptr(),
                                             .b = stored.const_data_ptr(),
                                             .c = c.const_data_ptr(),
                                             .d = d.data_ptr(),
                                             .alpha = 0.125f,
                                             .beta = -4.75f,
                                             .diagonal = 3.5f};
      ASSERT_EQ(LaunchSymmetricProduct(params, nullptr), cudaSuccess);
      const auto expected = [&](at::ScalarType dtype) {
        const at::Tensor a = x.to(dtype);
        return 0.125 * at::bmm(a, a.transpose(1, 2)) - 4.75 * c.to(dtype) +
               3.5 * at::eye(shape.n, dtype);
      };
      EXPECT_TRUE(ErrorBudget::AgainstBaseline(
                      expected(at::kFloat).to(at::kHalf), expected(at::kDouble))
                      .Accepts(d))
          << shape.count << " x " << shape.n << " x " << shape.k
          << (transposed ? " transposed" : "");
    }
  }
}

// Small integers, so that all products are exact.
TEST(SymmetricProductKernel, OfTwoMatrices) {
  constexpr int64_t kCount = 2, kN = 392;
  at::manual_seed(7);
  at::Tensor s = at::randint(-1, 2, {kCount, kN, kN}).tril();
  s = s + s.tril(-1).transpose(1, 2);
  const at::Tensor square = at::bmm(s, s);
  const at::Tensor a = s.to(at::kHalf), b = square.to(at::kHalf);
  at::Tensor d = at::full_like(a, NAN);
  const SymmetricProductParams params = {.count = kCount,
                                         .n = kN,
                                         .k = kN,
                                         .transposed = true,
                                         .a = a.const_data_ptr(),
                                         .b = b.const_data_ptr(),
                                         .d = d.data_ptr(),
                                         .alpha = 0.125f};
  ASSERT_EQ(LaunchSymmetricProduct(params, nullptr), cudaSuccess);
  EXPECT_TRUE(BitEqual(d, (at::bmm(s, square) / 8).to(at::kHalf)));
}

}  // namespace
}  // namespace tessera
