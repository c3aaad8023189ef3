#ifndef FRAMEWORK_BASE_VECTOR_MATH_H_
#define FRAMEWORK_BASE_VECTOR_MATH_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

// For loops over rows on a CPU that the compiler vectorises. A library that
// includes this is compiled with VECTOR_MATH_COPTS (vector_math.bzl), under
// which `omp simd` pragmas allow sums in another order and comparisons become
// selections, not branches.

// A function with clones for CPUs with AVX2 and AVX-512, chosen when the
// program starts, which is before sanitizers can bear it.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v3", "arch=x86-64-v4", "default")))
#else
#define TESSERA_CPU_CLONES
#endif

// Makes the body of a lambda part of the loop that calls it.
#define TESSERA_INLINE __attribute__((always_inline))

namespace tessera {

// exp(x) for x <= 0, to an FP32 rounding or two; 0 below the least normal
// number, NaN for NaN. 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2: ln 2
// in two parts, of which n times the first is exact (Cody and Waite), and
// e^r by its Taylor polynomial, whose first missing term is below 2^-24 / 10.
// No branch, so that loops over it are vectorised.
__attribute__((always_inline)) inline float ExpOfNonPositive(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer
  constexpr float kLeast = -88;        // n = -127, for which `power` is 0
  const float clamped = x < kLeast ? kLeast : x;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float y = 1.0f / 5040;
  y = y * r + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1;
  y = y * r + 1;
  // The low bits of `shifted` are n.
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127) << 23;
  return y * std::bit_cast<float>(power);
}

// The sum of term(i) over i in [0, count), in as many independent sums whatever
// the vector width: of so few terms each that their rounding stays small, and
// the same everywhere but for fused multiply-adds.
template <typename Term>
__attribute__((always_inline)) inline float LaneSum(int64_t count,
                                                    const Term& term) {
  constexpr int kLanes = 32;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int k = 0; k < kLanes; ++k) lanes[k] += term(i + k);
  }
  for (int k = 0; i < count; ++i, ++k) lanes[k] += term(i);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// The largest of x, -infinity of none. In lanes, because max() as NaN defines
// it may not be reordered: a NaN is passed over, unless nothing is larger than
// -infinity.
template <typename S>
__attribute__((always_inline)) inline S MaxOf(const S* x, int64_t count) {
  constexpr int kLanes = 16;
  S lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<S>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] = std::max(lanes[k], x[i + k]);
  }
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], x[i]);
  const S max = *std::max_element(lanes, lanes + kLanes);
  if (max > -std::numeric_limits<S>::infinity()) return max;
  const S* const nan = std::find_if(x, x + count, [](S v) { return v != v; });
  return nan == x + count ? max : *nan;
}

}  // namespace tessera

#endif  // FRAMEWORK_BASE_VECTOR_MATH_H_
