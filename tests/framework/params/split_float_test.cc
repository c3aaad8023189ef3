#include "framework/params/split_float.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
float Bf16(uint16_t high) { return FromBits(uint32_t{high} << 16); }

// The number is restored, and `high` is the nearest BF16 number or, in a tie,
// the one farther from zero.
void Check(uint32_t bits) {
  const float x = FromBits(bits);
  if (std::isnan(x)) return;
  const SplitFloat halves = SplitInHalves(x);
  ASSERT_EQ(Bits(JoinHalves(halves)), bits);
  const uint32_t below = bits & 0xffff0000;  // toward zero
  const bool up = (bits & 0xffff) >= 0x8000;
  ASSERT_EQ(uint32_t{halves.high} << 16, below + (up ? 0x10000 : 0))
      << std::hex << bits;
}

TEST(SplitFloat, RestoresEveryExponentAtItsBoundaries) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t exponent = 0; exponent < 256; ++exponent) {
      for (const uint32_t high : {0u, 1u, 2u, 0x3fu, 0x40u, 0x7eu, 0x7fu}) {
        for (uint32_t low = 0; low < 0x10000; ++low) {
          Check(sign | exponent << 23 | high << 16 | low);
        }
      }
    }
  }
}

TEST(SplitFloat, RestoresRandomNumbers) {
  std::mt19937 random(1);
  for (int i = 0; i < 10'000'000; ++i) Check(static_cast<uint32_t>(random()));
}

TEST(SplitFloat, TiesRoundAwayFromZero) {
  // 1 + 2^-8 is halfway between the BF16 numbers 1 and 1 + 2^-7.
  EXPECT_EQ(Bf16(SplitInHalves(1.00390625f).high), 1.0078125f);
  EXPECT_EQ(Bf16(SplitInHalves(-1.00390625f).high), -1.0078125f);
  EXPECT_EQ(Bf16(SplitInHalves(FromBits(0x3f807fff)).high), 1);
}

TEST(SplitFloat, KeepsInfinitiesAndZeros) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {infinity, -infinity, 0.0f, -0.0f}) {
    const SplitFloat halves = SplitInHalves(x);
    EXPECT_EQ(halves.low, 0);
    EXPECT_EQ(Bits(Bf16(halves.high)), Bits(x));
    EXPECT_EQ(Bits(JoinHalves(halves)), Bits(x));
  }
}

// The largest numbers round to infinity, which the loss shows, but are not
// lost.
TEST(SplitFloat, LargestNumbersRoundToInfinityAndAreRestored) {
  EXPECT_TRUE(std::isfinite(Bf16(SplitInHalves(FromBits(0x7f7f7fff)).high)));
  for (const uint32_t bits : {0x7f7f8000u, 0x7f7fffffu}) {
    const SplitFloat halves = SplitInHalves(FromBits(bits));
    EXPECT_TRUE(std::isinf(Bf16(halves.high)));
    EXPECT_EQ(Bits(JoinHalves(halves)), bits);
  }
}

// Without a rule of its own, 0x7f800001 would round to infinity and 0x7fffffff
// to -0.
TEST(SplitFloat, EveryNanStaysANan) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t payload = 1; payload < 0x800000; ++payload) {
      const SplitFloat halves =
          SplitInHalves(FromBits(sign | 0x7f800000 | payload));
      ASSERT_TRUE(std::isnan(Bf16(halves.high))) << payload;
      ASSERT_TRUE(std::isnan(JoinHalves(halves))) << payload;
    }
  }
}

}  // namespace
}  // namespace tessera
