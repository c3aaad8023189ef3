#include "framework/params/initial_values.h"

#include <ATen/ATen.h>
#include <xxhash.h>

#include <cmath>
#include <optional>

#include "framework/base/check.h"
#include "framework/cuda/cuda_build.h"
#include "framework/params/split_tensor.h"
#include "framework/params/truncated_normal_fill.h"

namespace tessera {
namespace {

float StandardDeviation(const ParameterSpec& spec) {
  if (spec.init == Init::kEmbedding) return 1;
  if (spec.init == Init::kTiedEmbedding) {
    return static_cast<float>(std::sqrt(1.0 / spec.shape[1]));
  }
  const auto fan_sum = static_cast<double>(spec.shape[0] + spec.shape[1]);
  return static_cast<float>(std::sqrt(2 / fan_sum));
}

void FillTruncatedNormal(const TruncatedNormal& normal,
                         const at::Tensor& values) {
  const at::ScalarType dtype = values.scalar_type();
  if constexpr (kCudaBuild) {
    if (values.is_cuda() && dtype != at::kDouble) {
      cuda::FillTruncatedNormal(normal, values);
      return;
    }
  }
  if (values.is_cpu() && dtype == at::kFloat) {
    cpu::FillTruncatedNormal(normal, values);
    return;
  }
  const at::Tensor fp32 = at::empty(values.sizes(), at::kFloat);
  cpu::FillTruncatedNormal(normal, fp32);
  values.copy_(fp32);
}

TruncatedNormal NormalOf(const ParameterSpec& spec, uint64_t seed) {
  return {.seed = seed,
          .stream = XXH3_64bits(spec.name.data(), spec.name.size()),
          .stddev = StandardDeviation(spec)};
}

// The value of all elements; nullopt if they are random.
std::optional<int> ConstantOf(Init init) {
  if (init == Init::kZeros) return 0;
  if (init == Init::kOnes) return 1;
  return std::nullopt;
}

}  // namespace

void FillInitialValues(const ParameterSpec& spec, uint64_t seed,
                       const at::Tensor& values) {
  TESSERA_CHECK(values.is_contiguous(), spec.name);
  if (const std::optional<int> constant = ConstantOf(spec.init)) {
    values.fill_(*constant);
    return;
  }
  FillTruncatedNormal(NormalOf(spec, seed), values);
}

void FillInitialValues(const ParameterSpec& spec, uint64_t seed,
                       const at::Tensor& high, const at::Tensor& low) {
  if (const std::optional<int> constant = ConstantOf(spec.init)) {
    high.fill_(*constant);  // a BF16 number
    low.zero_();
    return;
  }
  const TruncatedNormal normal = NormalOf(spec, seed);
  if constexpr (kCudaBuild) {
    if (high.is_cuda()) {
      cuda::FillTruncatedNormal(normal, high, low);
      return;
    }
  }
  const at::Tensor fp32 = at::empty(high.sizes(), at::kFloat);
  cpu::FillTruncatedNormal(normal, fp32);
  SplitInHalves(fp32, high, low);
}

}  // namespace tessera
