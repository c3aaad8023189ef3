#include "framework/dist/sum_addends.h"

#include <cstdint>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using ::tessera::testing::BitEqual;

// `ranks` rows of `numel` random values. Rows differ in size by factors of 300
// and 90,000, so adding in another order or rounding in between changes the
// sum.
at::Tensor Addends(int64_t ranks, int64_t numel, at::ScalarType dtype) {
  at::manual_seed(ranks * 1000 + numel);
  const at::Tensor scale =
      at::arange(ranks, at::kFloat).remainder(3).mul(5.7).exp();
  const at::Tensor values =
      at::randn({ranks, numel}, at::kFloat) / scale.unsqueeze(1);
  return values.to(at::kCUDA, dtype);
}

// The definition: FP32, row by row, rounded once.
at::Tensor Expected(const at::Tensor& addends) {
  at::Tensor sum = addends[0].to(at::kFloat);
  for (int64_t row = 1; row < addends.size(0); ++row) {
    sum += addends[row].to(at::kFloat);
  }
  return sum.to(addends.scalar_type());
}

// Lengths with and without packs, and of several thread blocks; sums that begin
// on a pack's border and off it.
TEST(GpuSumAddends, AddsInOrderAndRoundsOnce) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t ranks : {1, 2, 3, 8}) {
      for (const int64_t numel : {1, 7, 8, 127, 1000, 4096, 70001}) {
        SCOPED_TRACE(::testing::Message()
                     << c10::toString(dtype) << " " << ranks << " x " << numel);
        const at::Tensor addends = Addends(ranks, numel, dtype);
        const at::Tensor guarded =
            at::full({numel + 16}, 42, addends.options());
        for (const int64_t offset : {8, 3}) {
          guarded.fill_(42);
          const at::Tensor sum = guarded.narrow(0, offset, numel);
          ASSERT_TRUE(SumAddends(addends, sum).ok());
          EXPECT_TRUE(BitEqual(sum, Expected(addends)));
          EXPECT_TRUE((guarded.narrow(0, 0, offset) == 42).all().item<bool>() &&
                      (guarded.narrow(0, offset + numel, 16 - offset) == 42)
                          .all()
                          .item<bool>())
              << "writes outside of the sum";
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
