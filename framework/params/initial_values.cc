#include "framework/params/initial_values.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "framework/base/check.h"

namespace tessera {
namespace {

constexpr float kCut = 3;                     // in standard deviations
constexpr double kErfOfCut = 0.997300203937;  // erf(3 / sqrt(2)): P(|z| < 3)

// Number of values per task of a thread, and per copy to a device (64 MiB of
// FP32). Both are multiples of four, the number of values from one Philox
// counter.
constexpr int64_t kGrain = 1 << 14;
constexpr int64_t kStaging = 1 << 24;

// Inverse error function, accurate to about 3 ulp for |x| < 0.9974 (M. Giles,
// "Approximating the erfinv function", GPU Computing Gems, 2012, table 5).
float ErfInv(float x) {
  float w = -std::log((1 - x) * (1 + x));
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
    w = std::sqrt(w) - 3;
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

// A normal variate truncated at kCut, by inversion: one random word gives one
// value, so values do not depend on each other. u is uniform in (-1, 1).
float TruncatedNormal(uint32_t word) {
  const double u = (static_cast<int32_t>(word) + 0.5) * 0x1p-31;
  const float z =
      static_cast<float>(M_SQRT2) * ErfInv(static_cast<float>(kErfOfCut * u));
  return std::clamp(z, -kCut, kCut);
}

// The random stream for a parameter's name and the run's seed.
struct Stream {
  uint64_t seed;
  uint64_t subsequence;
  float stddev;

  // Writes values [begin, begin + count) to `out`; begin is a multiple of four.
  void Fill(int64_t begin, int64_t count, float* out) const {
    at::parallel_for(0, count, kGrain, [&](int64_t from, int64_t to) {
      from = (from + 3) / 4 * 4;
      to = std::min((to + 3) / 4 * 4, count);
      at::Philox4_32 words(seed, subsequence, (begin + from) / 4);
      for (int64_t i = from; i < to; ++i) {
        out[i] = stddev * TruncatedNormal(words());
      }
    });
  }
};

float StandardDeviation(const ParameterSpec& spec) {
  if (spec.init == Init::kEmbedding) return 1;
  if (spec.init == Init::kTiedEmbedding) {
    return static_cast<float>(std::sqrt(1.0 / spec.shape[1]));
  }
  const auto fan_sum = static_cast<double>(spec.shape[0] + spec.shape[1]);
  return static_cast<float>(std::sqrt(2 / fan_sum));
}

}  // namespace

void FillInitialValues(const ParameterSpec& spec, uint64_t seed,
                       at::Tensor values) {
  TESSERA_CHECK(values.is_contiguous(), spec.name);
  if (spec.init == Init::kZeros || spec.init == Init::kOnes) {
    values.fill_(spec.init == Init::kOnes ? 1 : 0);
    return;
  }
  const Stream stream{seed, XXH3_64bits(spec.name.data(), spec.name.size()),
                      StandardDeviation(spec)};
  const at::Tensor flat = values.view({-1});
  const int64_t numel = flat.numel();
  if (flat.is_cpu() && flat.scalar_type() == at::kFloat) {
    stream.Fill(0, numel, flat.data_ptr<float>());
    return;
  }
  const at::Tensor staging = at::empty({std::min(numel, kStaging)}, at::kFloat);
  for (int64_t begin = 0; begin < numel; begin += kStaging) {
    const int64_t count = std::min(kStaging, numel - begin);
    stream.Fill(begin, count, staging.data_ptr<float>());
    flat.narrow(0, begin, count).copy_(staging.narrow(0, 0, count));
  }
}

}  // namespace tessera
