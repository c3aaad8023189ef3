#include "framework/params/split_tensor.h"

#include <ATen/Parallel.h>

#include <cstdint>

#include "framework/params/split_float.h"

namespace tessera {
namespace {

// Number of elements per task of a thread.
constexpr int64_t kGrain = 1 << 14;

// Calls fn(i) for every element.
template <typename Fn>
void ForEachElement(const at::Tensor& values, const Fn& fn) {
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(i);
  });
}

}  // namespace

void SplitInHalves(const at::Tensor& values, const at::Tensor& high,
                   const at::Tensor& low) {
  const float* const from = values.const_data_ptr<float>();
  auto* const highs = static_cast<uint16_t*>(high.mutable_data_ptr());
  auto* const lows = low.mutable_data_ptr<int16_t>();
  ForEachElement(values, [=](int64_t i) {
    const SplitFloat x = SplitInHalves(from[i]);
    highs[i] = x.high;
    lows[i] = x.low;
  });
}

void JoinHalves(const at::Tensor& high, const at::Tensor& low,
                const at::Tensor& values) {
  const auto* const highs = static_cast<const uint16_t*>(high.const_data_ptr());
  const auto* const lows = low.const_data_ptr<int16_t>();
  float* const to = values.mutable_data_ptr<float>();
  ForEachElement(values, [=](int64_t i) {
    to[i] = JoinHalves({highs[i], lows[i]});
  });
}

}  // namespace tessera
