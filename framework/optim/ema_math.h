#ifndef FRAMEWORK_OPTIM_EMA_MATH_H_
#define FRAMEWORK_OPTIM_EMA_MATH_H_

#include <bit>
#include <cstdint>

#include "framework/cuda/host_device.h"
#include "framework/params/split_float.h"

namespace tessera {

// The exponential moving average of the weights (Polyak and Juditsky,
// "Acceleration of stochastic approximation by averaging", 1992; with a decay,
// Tarvainen and Valpola, "Mean teachers are better role models", 2017), in
// FP32. The CPU loop and the CUDA kernel both use these functions. nvcc
// compiles this header, so it must not include LibTorch.

// The constants of a run. Passed to the kernel by value.
struct EmaOptions {
  float one_minus_decay = 1e-3f;
  bool warmup = false;
};

// What a pass over weights and averages does.
enum class EmaPass : int32_t {
  kUpdate,    // UpdateEma(), unless the step is skipped
  kRestart,   // average <- weight
  kExchange,  // ExchangeEma()
};

struct EmaBuffers {
  float* average;  // a value per element of the flat order; 16-byte aligned
  EmaOptions options;
  const int64_t* step;  // updates so far, with this one
  const bool* skips;
};

// One weight with its average.
struct EmaElement {
  float param;    // w
  float average;  // a
};

// 1 - d_t after update t = 1, 2, ... With a warm-up, d_t is min(decay,
// (1 + t) / (10 + t)), as in tf.train.ExponentialMovingAverage, so that the
// average forgets the initial weights.
TESSERA_HOST_DEVICE float EmaWeight(const EmaOptions& options, int64_t t) {
  const float start = 9.0f / (10.0f + static_cast<float>(t));
  return options.warmup && start > options.one_minus_decay
             ? start
             : options.one_minus_decay;
}

//   a <- d_t * a + (1 - d_t) * w
//
// computed like torch.lerp from weight = 1 - d_t: an average that equals the
// weight stays, and a weight of 1 copies.
TESSERA_HOST_DEVICE float UpdateEma(EmaElement x, float weight) {
  const float difference = x.param - x.average;
  return weight < 0.5f ? x.average + weight * difference
                       : x.param - difference * (1 - weight);
}

// Exchanges a finite weight and its average; a second call restores both bit
// for bit. A weight that is kept in BF16 becomes the average rounded to BF16,
// and the other half of the average stays where it is (split_float.h).
template <bool kBFloat16>
TESSERA_HOST_DEVICE EmaElement ExchangeEma(EmaElement x) {
  if constexpr (!kBFloat16) return {x.average, x.param};
  const auto weight =
      static_cast<uint16_t>(std::bit_cast<uint32_t>(x.param) >> 16);
  // Not SplitInHalves(), which changes NaNs: a weight of 0 beside a negative
  // half is one.
  const SplitFloat average = SplitBits(std::bit_cast<uint32_t>(x.average));
  return {JoinHalves({average.high, 0}), JoinHalves({weight, average.low})};
}

template <bool kBFloat16>
TESSERA_HOST_DEVICE EmaElement ApplyEma(EmaPass pass, EmaElement x,
                                        float weight) {
  if (pass == EmaPass::kExchange) return ExchangeEma<kBFloat16>(x);
  x.average = pass == EmaPass::kRestart ? x.param : UpdateEma(x, weight);
  return x;
}

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_EMA_MATH_H_
