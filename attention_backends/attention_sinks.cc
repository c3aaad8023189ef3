#include "attention_backends/attention_sinks.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/cuda/cuda_build.h"

namespace tessera {
namespace {

// Whether our kernels compute these: not in FP64, four elements at a time.
bool HasKernels(const at::Tensor& o_bhsd) {
  return kCudaBuild && o_bhsd.is_cuda() &&
         o_bhsd.scalar_type() != at::kDouble && o_bhsd.size(3) % 4 == 0;
}

}  // namespace

int64_t SinkChunks(int64_t tokens) {
  return std::clamp<int64_t>(tokens / 64, 1, 64);
}

void ApplySinks(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                const at::Tensor& lse_bhs) {
  if constexpr (kCudaBuild) {
    if (HasKernels(o_bhsd)) return cuda::ApplySinks(sinks, o_bhsd, lse_bhs);
  }
  const at::Tensor z = sinks.unsqueeze(1).to(lse_bhs.scalar_type());
  const at::Tensor with_sinks = at::logaddexp(lse_bhs, z);
  o_bhsd.mul_((lse_bhs - with_sinks).exp().unsqueeze(3));
  lse_bhs.copy_(with_sinks);
}

void SinkGradients(const at::Tensor& sinks, const at::Tensor& o_bhsd,
                   const at::Tensor& lse_bhs, const at::Tensor& d_o_bhsd,
                   const at::Tensor& d_sinks) {
  if constexpr (kCudaBuild) {
    if (HasKernels(o_bhsd)) {
      return cuda::SinkGradients(sinks, o_bhsd, lse_bhs, d_o_bhsd, d_sinks);
    }
  }
  const at::ScalarType wide = lse_bhs.scalar_type();
  for (int64_t head = 0; head < o_bhsd.size(1); ++head) {
    const at::Tensor delta =
        (d_o_bhsd.select(1, head).to(wide) * o_bhsd.select(1, head)).sum(-1);
    const at::Tensor p = (sinks[head] - lse_bhs.select(1, head)).exp();
    d_sinks[head].copy_(-(p * delta).sum());
  }
}

int64_t SinkGradientBytes(const AttentionProblem& problem) {
  return problem.h * SinkChunks(problem.b * problem.s) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace tessera
