#include "framework/optim/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/float_type_of.h"
#include "framework/optim/optimizer_kernels.h"

namespace tessera {
namespace {

// Elements per partial sum on a CPU. Long FP32 sums of squares of BF16 numbers
// are biased: odd squares are 1 modulo 8, so their last bits round down more
// often than up (1.3e-6 of the sum after 1,024 terms). With 256 terms per lane
// the bias is below 4e-7. Partial sums are added in FP64.
constexpr int64_t kCpuChunk = 1 << 12;

template <typename Scalar>
double SumOfSquaresOfChunk(const Scalar* values, int64_t count) {
  constexpr int64_t kLanes = 16;  // independent sums, for vectorisation
  std::array<float, kLanes> lanes{};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<float>(values[i + lane]);
      lanes[lane] += x * x;
    }
  }
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  for (int64_t i = whole; i < count; ++i) {
    const auto x = static_cast<float>(values[i]);
    sum += x * x;
  }
  return sum;
}

// Infinity if the sum exceeds FP32's range, as on a GPU.
template <typename Scalar>
float SumOfSquaresOnCpu(const at::Tensor& flat) {
  const Scalar* values = flat.const_data_ptr<Scalar>();
  const int64_t numel = flat.numel();
  const int64_t num_chunks = (numel + kCpuChunk - 1) / kCpuChunk;
  std::vector<double> partial(num_chunks);
  at::parallel_for(0, num_chunks, /*grain_size=*/16,
                   [&](int64_t from, int64_t to) {
                     for (int64_t chunk = from; chunk < to; ++chunk) {
                       const int64_t begin = chunk * kCpuChunk;
                       partial[chunk] = SumOfSquaresOfChunk(
                           values + begin, std::min(kCpuChunk, numel - begin));
                     }
                   });
  double sum = 0;
  for (const double part : partial) sum += part;
  using Limits = std::numeric_limits<float>;
  return sum > Limits::max() ? Limits::infinity() : static_cast<float>(sum);
}

}  // namespace

absl::StatusOr<at::Tensor> SumOfSquares(const at::Tensor& flat,
                                        at::ScalarType dtype) {
  TESSERA_CHECK(flat.is_contiguous(), "not a flat buffer");
  if (dtype != at::kFloat) return flat.to(dtype).square_().sum({0}, true);
  at::Tensor sum = at::empty({1}, flat.options().dtype(at::kFloat));
  if constexpr (kCudaBuild) {
    if (flat.is_cuda()) {
      RETURN_IF_ERROR(cuda::SumOfSquares(flat, sum));
      return sum;
    }
  }
  switch (FloatTypeOf(flat.scalar_type())) {
    case FloatType::kFloat:
      sum.fill_(SumOfSquaresOnCpu<float>(flat));
      break;
    case FloatType::kBFloat16:
      sum.fill_(SumOfSquaresOnCpu<at::BFloat16>(flat));
      break;
    case FloatType::kHalf:
      sum.fill_(SumOfSquaresOnCpu<at::Half>(flat));
      break;
  }
  return sum;
}

at::Tensor NotFinite(const at::Tensor& x) {
  return x.sub(x).ne(0);  // infinity minus infinity is NaN
}

GradientScale MakeGradientScale(const at::Tensor& sum_of_squares,
                                std::optional<double> clip_norm,
                                const at::Tensor& inverse_loss_scale) {
  GradientScale result;
  result.norm = sum_of_squares.sqrt();
  if (inverse_loss_scale.defined()) result.norm.mul_(inverse_loss_scale);
  if (clip_norm.has_value()) {
    result.scale =
        (result.norm + 1e-6).reciprocal_().mul_(*clip_norm).clamp_max_(1);
  } else {
    result.scale = at::ones_like(result.norm);
  }
  if (inverse_loss_scale.defined()) result.scale.mul_(inverse_loss_scale);
  result.scale = result.scale.to(at::kFloat);
  result.nonfinite = NotFinite(result.norm);
  return result;
}

std::string FirstNonFiniteGradient(const ParameterStore& store) {
  for (const ParameterSlice& slice : store.slices()) {
    if (!slice.trainable) continue;
    const at::Tensor grad = store.grad().narrow(0, slice.offset, slice.numel);
    if (!grad.isfinite().all().item<bool>()) return slice.name;
  }
  return "";
}

}  // namespace tessera
