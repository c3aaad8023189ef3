#include "framework/optim/symmetric_product.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <ostream>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using testing::BitEqual;
using testing::ErrorBudget;

struct Shape {
  int64_t count, n, k;
  bool transposed = false;
};
std::ostream& operator<<(std::ostream& to, const Shape& shape) {
  return to << shape.count << "x" << shape.n << "x" << shape.k
            << (shape.transposed ? "_transposed" : "");
}

// Operands whose product is symmetric.
struct Operands {
  at::Tensor a, c;

  Operands(const Shape& shape, at::ScalarType dtype, at::Device device) {
    at::manual_seed(7);
    const auto random = [&](int64_t rows, int64_t columns) {
      return at::randn({shape.count, rows, columns}).to(device, dtype);
    };
    a = shape.transposed ? random(shape.k, shape.n).transpose(1, 2)
                         : random(shape.n, shape.k);
    c = random(shape.n, shape.n);
    c = (c + c.transpose(1, 2)).contiguous();
  }

  // Where a library's products on the GPU are not to be tested, on the CPU.
  at::Tensor Expected(const SymmetricSum& sum, bool with_c,
                      at::ScalarType dtype) const {
    const at::Device device =
        a.size(1) < 1000 ? at::Device(at::kCPU) : a.device();
    const at::Tensor x = a.to(device, dtype);
    at::Tensor d = at::bmm(x, x.transpose(1, 2)) * sum.alpha;
    if (with_c) d = d + sum.beta * c.to(device, dtype);
    return d + sum.diagonal * at::eye(a.size(1), d.options());
  }
};

// Rounded once, so FP32's error of the sum and half a unit of the result.
void ExpectProducts(const Shape& shape, at::ScalarType dtype,
                    at::Device device) {
  const Operands operands(shape, dtype, device);
  const SymmetricSum all = {.alpha = 0.125, .beta = -4.775, .diagonal = 3.4445};
  for (const bool with_c : {false, true}) {
    const SymmetricSum sum = with_c ? all : SymmetricSum{.alpha = 0.125};
    at::Tensor d = at::full_like(operands.c, NAN);
    ASSERT_TRUE(SymmetricProduct(d, operands.a, operands.a.transpose(1, 2), sum,
                                 with_c ? operands.c : at::Tensor())
                    .ok());
    const at::Tensor plain = operands.Expected(sum, with_c, at::kFloat);
    EXPECT_TRUE(
        ErrorBudget::AgainstBaseline(
            plain.to(dtype), operands.Expected(sum, with_c, at::kDouble))
            .Accepts(d.to(plain.device())))
        << shape << (with_c ? " with C" : "");
  }
}

TEST(SymmetricProduct, EqualsFp64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    for (const Shape& shape : std::vector<Shape>{
             {2, 8, 8}, {1, 7, 13}, {3, 40, 24, true}, {1, 129, 65}}) {
      ExpectProducts(shape, dtype, at::kCPU);
    }
  }
}

// Small integers, so that all products are exact.
void ExpectPowers(at::Device device) {
  at::manual_seed(7);
  at::Tensor s = at::randint(-1, 2, {2, 520, 520}).tril();
  s = s + s.tril(-1).transpose(1, 2);
  const at::Tensor square = at::bmm(s, s);
  const auto half = [&](const at::Tensor& x) {
    return x.to(device, at::kHalf);
  };
  at::Tensor d = at::empty_like(half(s));
  ASSERT_TRUE(
      SymmetricProduct(d, half(s), half(square), {.alpha = 0.125}).ok());
  EXPECT_TRUE(BitEqual(d.cpu(), (at::bmm(s, square) / 8).to(at::kHalf)));
}

TEST(SymmetricProduct, OfTwoMatrices) { ExpectPowers(at::kCPU); }

TEST(GpuSymmetricProduct, OfTwoMatrices) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectPowers(at::Device(at::kCUDA, 0));
}

TEST(GpuSymmetricProduct, EqualsFp64) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Device device(at::kCUDA, 0);
  for (const Shape& shape : std::vector<Shape>{{2, 8, 8},
                                               {1, 7, 13},
                                               {3, 40, 24, true},
                                               {5, 136, 64},
                                               {2, 264, 136, true},
                                               {3, 776, 1000},
                                               {3, 776, 1000, true},
                                               {7, 2560, 2560},
                                               {2, 2560, 10240},
                                               {2, 2560, 10240, true}}) {
    ExpectProducts(shape, at::kHalf, device);
  }
  ExpectProducts({2, 136, 200}, at::kFloat, device);
}

// Blocks write different tiles, so nothing depends on their order.
TEST(GpuSymmetricProduct, HasTheSameBitsAgain) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const Operands operands({4, 1096, 520}, at::kHalf, at::Device(at::kCUDA, 0));
  const auto product = [&] {
    at::Tensor d = at::empty_like(operands.c);
    EXPECT_TRUE(
        SymmetricProduct(d, operands.a, operands.a.transpose(1, 2), {}).ok());
    return d;
  };
  const at::Tensor first = product();
  EXPECT_TRUE(BitEqual(first, first.transpose(1, 2)));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(BitEqual(product(), first));
}

}  // namespace
}  // namespace tessera
