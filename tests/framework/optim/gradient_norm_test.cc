#include "framework/optim/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <vector>

#include "framework/optim/non_finite_latch.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera {
namespace {

using testing::BitEqual;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The sum of squares of a buffer that holds one parameter.
at::Tensor Sum(const at::Tensor& flat) {
  const GradientRange all = {0, static_cast<int64_t>(flat.nbytes())};
  SumOfSquares squares(flat, {all});
  const absl::Status status = squares.SumSegments(all);
  EXPECT_TRUE(status.ok()) << status;
  return squares.Total().value();
}

struct FlatCase {
  int64_t numel;
  at::ScalarType dtype;
};

class SumOfSquaresTest : public ::testing::TestWithParam<FlatCase> {
 protected:
  at::Tensor Values(at::Device device) const {
    at::manual_seed(GetParam().numel);
    return at::randn({GetParam().numel}, at::kFloat)
        .to(device, GetParam().dtype);
  }
};

TEST_P(SumOfSquaresTest, EqualsFp64) {
  const at::Tensor values = Values(at::kCPU);
  const double oracle = values.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(Sum(values).item<float>(), oracle, 1e-6 * oracle);
}

TEST_P(SumOfSquaresTest, DoesNotDependOnThreads) {
  const at::Tensor values = Values(at::kCPU);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor serial = Sum(values);
  at::set_num_threads(3);
  const at::Tensor parallel = Sum(values);
  at::set_num_threads(threads);
  EXPECT_TRUE(BitEqual(serial, parallel));
}

const FlatCase kFlatCases[] = {
    {0, at::kFloat},      {1, at::kFloat},         {127, at::kBFloat16},
    {1001, at::kHalf},    {70'003, at::kFloat},    {300'001, at::kBFloat16},
    {300'007, at::kHalf}, {5'000'003, at::kFloat}, {5'000'003, at::kBFloat16},
};
INSTANTIATE_TEST_SUITE_P(, SumOfSquaresTest, ::testing::ValuesIn(kFlatCases));

class GpuSumOfSquares : public SumOfSquaresTest {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }
};

TEST_P(GpuSumOfSquares, EqualsFp64) {
  const at::Tensor values = Values(at::Device(at::kCUDA, 0));
  const double oracle =
      values.cpu().to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(Sum(values).item<float>(), oracle, 1e-6 * oracle);
}

TEST_P(GpuSumOfSquares, GivesTheSameBitsAgain) {
  const at::Tensor values = Values(at::Device(at::kCUDA, 0));
  const at::Tensor first = Sum(values);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(BitEqual(Sum(values).cpu(), first.cpu()));
  }
}

TEST_P(GpuSumOfSquares, SeesANonFiniteValueAnywhere) {
  const at::Tensor values = Values(at::Device(at::kCUDA, 0));
  if (values.numel() == 0) return;
  for (const int64_t index : {int64_t{0}, values.numel() - 1}) {
    const at::Tensor spoilt = values.clone();
    spoilt[index] = kNan;
    EXPECT_TRUE(std::isnan(Sum(spoilt).item<float>())) << index;
  }
}

INSTANTIATE_TEST_SUITE_P(, GpuSumOfSquares, ::testing::ValuesIn(kFlatCases));

void ExpectInfiniteAboveFp32(at::Device device) {
  // Each square is finite in FP32; the sum is finite only in FP64.
  const at::Tensor values =
      at::full({5000}, 1e18, at::device(device).dtype(at::kFloat));
  EXPECT_TRUE(std::isinf(Sum(values).item<float>()));
}

TEST(SumOfSquaresOnCpu, IsInfiniteAboveTheRangeOfFp32) {
  ExpectInfiniteAboveFp32(at::kCPU);
}

TEST(GpuSumOfSquaresRange, IsInfiniteAboveTheRangeOfFp32) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectInfiniteAboveFp32(at::Device(at::kCUDA, 0));
}

// Parameters of odd sizes, with gaps, that segments do not divide: summed at
// once or in slices, in any order, the bits are the same. They are also those
// of a buffer in which the parameters lie elsewhere.
void ExpectTheBitsOfAnySlices(at::Device device) {
  at::manual_seed(5);
  const int64_t sizes[] = {70'003, 1, 0, 200'001, 65'536, 127};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    const auto size = static_cast<int64_t>(c10::elementSize(dtype));
    const auto place = [&](int64_t gap) {
      std::vector<GradientRange> ranges;
      int64_t end = 0;
      for (const int64_t numel : sizes) {
        const int64_t bytes = numel * size;
        ranges.push_back(numel == 0 ? GradientRange()
                                    : GradientRange{end, end + bytes});
        end = (end + bytes + 255) / 256 * 256 + gap;
      }
      return ranges;
    };
    const std::vector<GradientRange> ranges = place(0), spread = place(512);
    const auto buffer = [&](const std::vector<GradientRange>& of) {
      return at::zeros({of.back().end / size}, at::device(device).dtype(dtype));
    };
    const at::Tensor flat = buffer(ranges), other = buffer(spread);
    const auto part = [&](const at::Tensor& of, const GradientRange& range) {
      return of.slice(0, range.begin / size, range.end / size);
    };
    for (size_t p = 0; p < ranges.size(); ++p) {
      part(flat, ranges[p]).normal_();
      part(other, spread[p]).copy_(part(flat, ranges[p]));
    }
    SumOfSquares whole(flat, ranges), slices(flat, ranges),
        elsewhere(other, spread);
    ASSERT_TRUE(whole.SumSegments({0, ranges.back().end}).ok());
    ASSERT_TRUE(elsewhere.SumSegments({0, spread.back().end}).ok());
    for (size_t p = ranges.size(); p-- > 0;) {
      ASSERT_TRUE(slices.SumSegments(ranges[p]).ok());
    }
    const at::Tensor total = whole.Total().value().cpu();
    EXPECT_NEAR(total.item<double>(),
                flat.to(at::kDouble).square().sum().item<double>(),
                1e-6 * total.item<double>());
    EXPECT_TRUE(BitEqual(total, slices.Total().value().cpu()));
    EXPECT_TRUE(BitEqual(total, elsewhere.Total().value().cpu()));
  }
}

TEST(SumOfSquaresOnCpu, HasTheBitsOfAnySlices) {
  ExpectTheBitsOfAnySlices(at::kCPU);
}

TEST(GpuSumOfSquaresSlices, HaveTheBitsOfTheWhole) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectTheBitsOfAnySlices(at::Device(at::kCUDA, 0));
}

at::Tensor Scalar(double value) { return at::full({1}, value, at::kFloat); }

TEST(GradientScale, ClipsToTheNorm) {
  const GradientScale scale = MakeGradientScale(Scalar(25), 1.0, {});
  EXPECT_FLOAT_EQ(scale.norm.item<float>(), 5);
  EXPECT_FLOAT_EQ(scale.scale.item<float>(), 1 / (5 + 1e-6));
  EXPECT_FALSE(scale.nonfinite.item<bool>());
}

// The norm is so small that the 1e-6 is a thousandth of it.
void ExpectTheNormIsMovedAwayFromZero(at::Device device) {
  constexpr double kNorm = 1e-3, kClip = 1e-4;
  // 100 equal elements, with the sum of squares as in a step.
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor gradient =
        at::full({100}, kNorm / 10, at::device(device).dtype(dtype));
    const GradientScale scale = MakeGradientScale(Sum(gradient), kClip, {});
    const double norm = 10 * gradient[0].item<double>();
    EXPECT_NEAR(scale.norm.item<double>(), norm, 1e-6 * norm);
    const double expected = kClip / (norm + 1e-6);
    EXPECT_NEAR(scale.scale.item<double>(), expected, 1e-6 * expected);
    // Clipping compares with the true norm, not the scaled one.
    const at::Tensor inverse = at::full({1}, 0x1p-10, scale.norm.options());
    const GradientScale unscaled =
        MakeGradientScale(Sum(gradient) * 0x1p20, kClip, inverse);
    EXPECT_NEAR(unscaled.scale.item<double>(), expected * 0x1p-10,
                1e-6 * expected * 0x1p-10);
  }
}

TEST(GradientScale, MovesTheNormAwayFromZero) {
  ExpectTheNormIsMovedAwayFromZero(at::kCPU);
}

TEST(GpuGradientScale, MovesTheNormAwayFromZero) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectTheNormIsMovedAwayFromZero(at::Device(at::kCUDA, 0));
}

TEST(GradientScale, DoesNotScaleShorterGradients) {
  EXPECT_EQ(MakeGradientScale(Scalar(25), 5.1, {}).scale.item<float>(), 1);
  EXPECT_EQ(MakeGradientScale(Scalar(0), 1.0, {}).scale.item<float>(), 1);
}

TEST(GradientScale, IsOneWithoutClipping) {
  const GradientScale scale = MakeGradientScale(Scalar(1e8), std::nullopt, {});
  EXPECT_FLOAT_EQ(scale.norm.item<float>(), 1e4);
  EXPECT_EQ(scale.scale.item<float>(), 1);
}

// The buffer holds 1024 times the true gradient, whose norm is 5.
TEST(GradientScale, UndoesTheLossScale) {
  const at::Tensor inverse = Scalar(1.0 / 1024);
  const at::Tensor sum = Scalar(25.0 * 1024 * 1024);
  const GradientScale clipped = MakeGradientScale(sum, 1.0, inverse);
  EXPECT_FLOAT_EQ(clipped.norm.item<float>(), 5);
  EXPECT_FLOAT_EQ(clipped.scale.item<float>(), 0.2 / 1024);
  EXPECT_EQ(MakeGradientScale(sum, std::nullopt, inverse).scale.item<float>(),
            1.0f / 1024);
  EXPECT_EQ(inverse.item<float>(), 1.0f / 1024);  // not written to
}

TEST(GradientScale, FlagsInfinityAndNan) {
  for (const double bad : {kInfinity, kNan}) {
    for (const auto clip :
         {std::optional<double>(1.0), std::optional<double>()}) {
      EXPECT_TRUE(
          MakeGradientScale(Scalar(bad), clip, {}).nonfinite.item<bool>());
    }
  }
}

void ExpectNotFiniteIsFound(at::Device device) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  const at::Tensor values =
      at::tensor({0.0f, -1.5f, kMost, -kMost, kLeast,
                  static_cast<float>(kInfinity), static_cast<float>(-kInfinity),
                  static_cast<float>(kNan)})
          .to(device);
  const at::Tensor found = NotFinite(values);
  EXPECT_EQ(found.scalar_type(), at::kBool);
  EXPECT_TRUE(at::equal(found, values.isfinite().logical_not()));
}

TEST(NotFinite, IsInfinityAndNan) { ExpectNotFiniteIsFound(at::kCPU); }

TEST(GpuNotFinite, IsInfinityAndNan) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectNotFiniteIsFound(at::Device(at::kCUDA, 0));
}

TEST(NonFiniteGradients, FindsTheParameters) {
  auto store = ParameterStore::Create(
      {{"frozen", {{"frozen", {4}}}, /*trainable=*/false},
       {"qkv", {{"q", {2, 3}}, {"k", {1, 3}}}},
       {"head", {{"head", {5}}}}},
      {});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto found = [&] {
    std::vector<std::string> names;
    const at::Tensor bad = NonFiniteGradients(**store);
    for (size_t i = 0; i < (*store)->slices().size(); ++i) {
      if (bad[static_cast<int64_t>(i)].item<int64_t>() == 0) continue;
      names.push_back((*store)->slices()[i].name);
    }
    return names;
  };
  EXPECT_EQ(found(), std::vector<std::string>());
  (*store)->Get("head").grad()[4] = kInfinity;
  EXPECT_EQ(found(), std::vector<std::string>({"head"}));
  (*store)->Get("qkv").grad()[2][0] = kNan;
  EXPECT_EQ(found(), std::vector<std::string>({"k", "head"}));
}

void ExpectLatches(at::Device device) {
  NonFiniteLatch latch(/*next_step=*/7, device);
  const auto update = [&](bool nonfinite) {
    return latch
        .Update(at::full({1}, nonfinite, at::device(device).dtype(at::kBool)))
        .item<bool>();
  };
  EXPECT_FALSE(update(false));
  EXPECT_FALSE(update(false));
  EXPECT_EQ(latch.first_bad_step().item<int64_t>(), -1);
  EXPECT_TRUE(update(true));  // step 9
  EXPECT_TRUE(update(false));
  EXPECT_TRUE(update(true));
  EXPECT_EQ(latch.first_bad_step().item<int64_t>(), 9);
}

TEST(NonFiniteLatch, KeepsTheFirstBadStepAndSkipsFromThen) {
  ExpectLatches(at::kCPU);
}

TEST(NonFiniteLatch, UpdatesInPlace) {
  NonFiniteLatch latch(0, at::kCPU);
  const at::Tensor yes = at::ones({1}, at::kBool);
  const void* skip = latch.Update(yes).const_data_ptr();
  EXPECT_EQ(latch.Update(yes).const_data_ptr(), skip);
}

TEST(GpuNonFiniteLatch, KeepsTheFirstBadStepAndSkipsFromThen) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectLatches(at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace tessera
