#ifndef FRAMEWORK_PARAMS_SPLIT_FLOAT_H_
#define FRAMEWORK_PARAMS_SPLIT_FLOAT_H_

#include <bit>
#include <cstdint>

namespace tessera {

// An FP32 number x in two 16-bit halves, whose `high` can be used as BF16:
//
//   high = x rounded to BF16, ties away from zero
//   bits of x = 2^16 * high + low, as integers
//
// Exact for every finite number and infinity. The high half of numbers from
// 0x1.ffp127 on is infinite, as under any rounding to nearest; the pair still
// restores them. A NaN becomes the quiet NaN 0x7fc00000, because other NaNs
// could round to infinity or to -0.
//
// nvcc compiles this header, so it must not include LibTorch.
struct SplitFloat {
  uint16_t high = 0;
  int16_t low = 0;
};

// Splits any 32 bits, also those of a NaN; JoinHalves() restores them.
constexpr SplitFloat SplitBits(uint32_t bits) {
  const uint32_t rounded = bits + 0x8000;
  // The low 16 bits as a signed number are what remains after the rounding.
  return {static_cast<uint16_t>(rounded >> 16), static_cast<int16_t>(bits)};
}

constexpr SplitFloat SplitInHalves(float x) {
  constexpr uint32_t kInfinity = 0x7f800000, kQuietNan = 0x7fc00000;
  const auto given = std::bit_cast<uint32_t>(x);
  return SplitBits((given & 0x7fffffff) > kInfinity ? kQuietNan : given);
}

constexpr float JoinHalves(SplitFloat x) {
  const uint32_t high = static_cast<uint32_t>(x.high) << 16;
  return std::bit_cast<float>(high + static_cast<uint32_t>(int32_t{x.low}));
}

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_SPLIT_FLOAT_H_
