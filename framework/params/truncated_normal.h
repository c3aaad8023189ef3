#ifndef FRAMEWORK_PARAMS_TRUNCATED_NORMAL_H_
#define FRAMEWORK_PARAMS_TRUNCATED_NORMAL_H_

#include <math.h>

#include <bit>
#include <cstdint>

#include "framework/cuda/host_device.h"

namespace tessera {

// Normal variates truncated at three standard deviations, with the same bits on
// every CPU and GPU. The CPU loop and the CUDA kernel both use these functions.
// They consist of integer operations and of + - * sqrt and conversions, which
// IEEE 754 rounds correctly; compilers must not contract them to fused
// multiply-adds (see BUILD.bazel).

// The parameters of a tensor's values. Different streams of a seed are
// independent.
struct TruncatedNormal {
  uint64_t seed = 0;
  uint64_t stream = 0;
  float stddev = 1;  // before truncation
};

// Philox4x32-10, a counter-based generator (Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011), with the key `seed` and the counter
// (counter, stream), low words first. A tensor's elements 4 i ... 4 i + 3 come
// from the words of counter i.
TESSERA_HOST_DEVICE void PhiloxWords(uint64_t seed, uint64_t stream,
                                     uint64_t counter, uint32_t (&words)[4]) {
  uint32_t c0 = static_cast<uint32_t>(counter);
  uint32_t c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream);
  uint32_t c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// A row of the table of Log().
struct LogTableRow {
  double inverse;  // 1 / c
  double log;      // log(c)
};

// The distance of x from the bottom of the interval [0.699, 1.398), to whose
// mantissas Log() reduces x, as a difference of the floats' bits.
TESSERA_HOST_DEVICE uint32_t LogOffset(float x) {
  return std::bit_cast<uint32_t>(x) - 0x3F330000;
}

// The row whose c is near x's mantissa.
TESSERA_HOST_DEVICE LogTableRow LogRowOf(float x) {
  static constexpr LogTableRow kRows[16] = {
      {0x1.661ec79f8f3bep+0, -0x1.57bf7808caadep-2},
      {0x1.571ed4aaf883dp+0, -0x1.2bef0a7c06ddbp-2},
      {0x1.49539f0f010bp+0, -0x1.01eae7f513a67p-2},
      {0x1.3c995b0b80385p+0, -0x1.b31d8a68224e9p-3},
      {0x1.30d190c8864a5p+0, -0x1.6574f0ac07758p-3},
      {0x1.25e227b0b8eap+0, -0x1.1aa2bc79c81p-3},
      {0x1.1bb4a4a1a343fp+0, -0x1.a4e76ce8c0e5ep-4},
      {0x1.12358f08ae5bap+0, -0x1.1973c5a611cccp-4},
      {0x1.0953f419900a7p+0, -0x1.252f438e10c1ep-5},
      {0x1p+0, 0x0p+0},
      {0x1.e608cfd9a47acp-1, 0x1.aa5aa5df25984p-5},
      {0x1.ca4b31f026aap-1, 0x1.c5e53aa362eb4p-4},
      {0x1.b2036576afce6p-1, 0x1.526e57720db08p-3},
      {0x1.9c2d163a1aa2dp-1, 0x1.bc2860d22477p-3},
      {0x1.886e6037841edp-1, 0x1.1058bc8a07ee1p-2},
      {0x1.767dcf5534862p-1, 0x1.4043057b6ee09p-2}};
  return kRows[(LogOffset(x) >> 19) % 16];
}

// log(x) for a positive, normal x with its row. The math libraries of CPUs and
// CUDA differ in the last bit. This is the algorithm, table and polynomial of
// logf in Arm's Optimized Routines (MIT licence), which is also glibc's. The
// error is below 0.82 ulp. With x = 2^k m and r = m / c - 1:
//   log(x) = k log(2) + log(c) + log(1 + r)
TESSERA_HOST_DEVICE float Log(float x, LogTableRow row) {
  const int32_t k = static_cast<int32_t>(LogOffset(x)) >> 23;
  const double m = std::bit_cast<float>(std::bit_cast<uint32_t>(x) -
                                        (static_cast<uint32_t>(k) << 23));
  const double r = m * row.inverse - 1, r2 = r * r;
  const double log_power = row.log + k * 0x1.62e42fefa39efp-1;
  double p = 0x1.5575b0be00b6ap-2 * r - 0x1.ffffef20a4123p-2;
  p = -0x1.00ea348b88334p-2 * r2 + p;
  return static_cast<float>(p * r2 + (log_power + r));
}

// A uniform variate in (-erf(3 / sqrt(2)), erf(3 / sqrt(2))): the probabilities
// of [-|z|, |z|] for |z| < 3, with z's sign.
TESSERA_HOST_DEVICE float SignedProbability(uint32_t word) {
  constexpr double kErfOfCut = 0.997300203937;
  return static_cast<float>(kErfOfCut *
                            ((static_cast<int32_t>(word) + 0.5) * 0x1p-31));
}

// The number whose logarithm ErfInv(x) takes.
TESSERA_HOST_DEVICE float ErfInvLogArgument(float x) {
  return (1 - x) * (1 + x);
}

// Inverse error function, accurate to about 3 ulp for |x| < 0.9974 (M. Giles,
// "Approximating the erfinv function", GPU Computing Gems, 2012, table 5).
// `row` is that of ErfInvLogArgument(x).
TESSERA_HOST_DEVICE float ErfInv(float x, LogTableRow row) {
  float w = -Log(ErfInvLogArgument(x), row);
  float p;
  if (w < 5) {
    w -= 2.5f;
    p = 2.81022636e-08f;
    p = 3.43273939e-07f + p * w;
    p = -3.5233877e-06f + p * w;
    p = -4.39150654e-06f + p * w;
    p = 0.00021858087f + p * w;
    p = -0.00125372503f + p * w;
    p = -0.00417768164f + p * w;
    p = 0.246640727f + p * w;
    p = 1.50140941f + p * w;
  } else {
    w = sqrtf(w) - 3;
    p = -0.000200214257f;
    p = 0.000100950558f + p * w;
    p = 0.00134934322f + p * w;
    p = -0.00367342844f + p * w;
    p = 0.00573950773f + p * w;
    p = -0.0076224613f + p * w;
    p = 0.00943887047f + p * w;
    p = 1.00167406f + p * w;
    p = 2.83297682f + p * w;
  }
  return p * x;
}

// The variate with unit standard deviation, by inversion. One random word gives
// one value, so that values do not depend on each other. `row` is that of
// ErfInvLogArgument(x).
TESSERA_HOST_DEVICE float TruncatedNormalOf(float x, LogTableRow row) {
  constexpr float kCut = 3, kSqrt2 = 1.41421356f;
  const float z = kSqrt2 * ErfInv(x, row);
  return z < -kCut ? -kCut : z > kCut ? kCut : z;
}

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_TRUNCATED_NORMAL_H_
