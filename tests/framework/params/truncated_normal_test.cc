#include "framework/params/truncated_normal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// The known answers of the authors' library, Random123.
TEST(PhiloxWords, AreTheKnownAnswers) {
  uint32_t words[4];
  PhiloxWords(0, 0, 0, words);
  EXPECT_THAT(words,
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  PhiloxWords(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
              words);
  EXPECT_THAT(words,
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

// One in 10,007 of all positive normal numbers, and all neighbours of 1, where
// log(x) cancels.
TEST(Log, IsWithin082Ulp) {
  double worst = 0;
  const auto compare = [&](uint32_t bits) {
    const auto x = std::bit_cast<float>(bits);
    if (x == 1) return;
    const double exact = std::log(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(Log(x, LogRowOf(x)) - exact) / ulp);
  };
  const auto least = std::bit_cast<uint32_t>(std::numeric_limits<float>::min());
  const auto infinity =
      std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
  for (uint32_t bits = least; bits < infinity; bits += 10007) compare(bits);
  const auto one = std::bit_cast<uint32_t>(1.0f);
  for (uint32_t bits = one - 5000; bits < one + 5000; ++bits) compare(bits);
  EXPECT_LT(worst, 0.82);
  EXPECT_EQ(Log(1, LogRowOf(1)), 0);
}

// Against erf of the result. Includes the ends of the range and both sides of
// 0, and both polynomials.
TEST(TruncatedNormalOf, InvertsTheProbability) {
  double worst = 0;
  const auto compare = [&](uint32_t word) {
    const float x = SignedProbability(word);
    const float z = TruncatedNormalOf(x, LogRowOf(ErfInvLogArgument(x)));
    ASSERT_LE(std::abs(z), 3);
    // dx = (2 / sqrt(pi)) exp(-z^2 / 2) dz / sqrt(2), so this is dz / |z|.
    const double error = std::erf(z * M_SQRT1_2) - x;
    const double slope = M_2_SQRTPI * M_SQRT1_2 * std::exp(-0.5 * z * z);
    worst = std::max(worst, std::abs(error / slope / z));
  };
  for (uint64_t word = 0; word < uint64_t{1} << 32; word += 10007) {
    compare(static_cast<uint32_t>(word));
  }
  for (const uint32_t word : {0u, ~0u, 0x7fffffffu, 0x80000000u}) {
    compare(word);
  }
  EXPECT_LT(worst, 3e-7);
}

}  // namespace
}  // namespace tessera
