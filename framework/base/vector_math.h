#ifndef FRAMEWORK_BASE_VECTOR_MATH_H_
#define FRAMEWORK_BASE_VECTOR_MATH_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// For CPU loops over rows that the compiler vectorises. Compile libraries that
// include this with VECTOR_MATH_COPTS (vector_math.bzl): they let `omp simd`
// pragmas reorder sums and turn comparisons into selects instead of branches.

// Compiles a function for AVX2 and AVX-512, too; the program selects a variant
// when it starts. Off under sanitizers, which are not yet set up by then.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v3", "arch=x86-64-v4", "default")))
#else
#define TESSERA_CPU_CLONES
#endif

// Inlines the body of a lambda into the loop that calls it.
#define TESSERA_INLINE __attribute__((always_inline))

namespace tessera {

// exp(x) = 2^n (1 + tail): for x <= 0, n = round(x / ln 2) and 1 + tail = e^r
// with |r| <= ln 2 / 2. 2^n is 0 if exp(x) is below the smallest normal number.
// ln 2 is split into two parts such that n times the first is exact (Cody and
// Waite). e^r is its Taylor polynomial; the first omitted term is below 2^-24 /
// 10. Free of branches, so that loops over it are vectorised.
struct ExpParts {
  float power;  // 2^n
  float tail;
};
__attribute__((always_inline)) inline ExpParts ExpPartsOfNonPositive(float x) {
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
  // The low bits of `shifted` are n.
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127) << 23;
  return {std::bit_cast<float>(power), y * r};
}

// exp(x) for x <= 0, within one or two FP32 roundings. Returns 0 below the
// smallest normal number, and NaN for NaN.
__attribute__((always_inline)) inline float ExpOfNonPositive(float x) {
  const ExpParts e = ExpPartsOfNonPositive(x);
  return (e.tail + 1) * e.power;
}

// tanh(x), in [-1, 1], and its derivative 1 - tanh(x)^2, each within a few FP32
// roundings, also near 0 and where tanh saturates. NaN for NaN. With e =
// exp(-2|x|) and m = e - 1, tanh(|x|) = -m / (m + 2), and the derivative is
// 4 e / (m + 2)^2.
struct TanhAndSlope {
  float tanh, slope;
};
__attribute__((always_inline)) inline TanhAndSlope TanhOf(float x) {
  const ExpParts parts = ExpPartsOfNonPositive(-2 * std::fabs(x));
  const float e = (parts.tail + 1) * parts.power;
  const float m = parts.tail * parts.power + (parts.power - 1);
  return {std::copysign(m / (m + 2), x), 4 * e / ((m + 2) * (m + 2))};
}

// The sum of term(i) for i in [0, count). It always uses 32 partial sums,
// whatever the vector width, so the rounding error stays small, and results
// differ between CPUs only by fused multiply-adds.
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

// The maximum of x; -infinity if it is empty. Ignores NaNs, unless nothing is
// larger than -infinity; then returns a NaN. Uses lanes, because the compiler
// must not reorder std::max(), whose result with a NaN depends on the order.
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
