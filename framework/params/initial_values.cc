#include "framework/params/initial_values.h"

#include <ATen/ATen.h>
#include <xxhash.h>

#include <cmath>

#include "framework/base/check.h"
#include "framework/cuda/cuda_build.h"
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

}  // namespace

void FillInitialValues(const ParameterSpec& spec, uint64_t seed,
                       const at::Tensor& values) {
  TESSERA_CHECK(values.is_contiguous(), spec.name);
  if (spec.init == Init::kZeros || spec.init == Init::kOnes) {
    values.fill_(spec.init == Init::kOnes ? 1 : 0);
    return;
  }
  FillTruncatedNormal(
      {.seed = seed,
       .stream = XXH3_64bits(spec.name.data(), spec.name.size()),
       .stddev = StandardDeviation(spec)},
      values);
}

}  // namespace tessera
