#include "framework/optim/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
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

template <typename Scalar>
void SumSegmentsOnCpu(const at::Tensor& flat, const at::Tensor& segments,
                      const at::Tensor& sums) {
  const Scalar* values = flat.const_data_ptr<Scalar>();
  const int64_t* const segment = segments.const_data_ptr<int64_t>();
  float* const sum = sums.data_ptr<float>();
  at::parallel_for(
      0, sums.numel(), /*grain_size=*/1, [&](int64_t from, int64_t to) {
        for (int64_t s = from; s < to; ++s) {
          const int64_t begin = segment[2 * s], count = segment[2 * s + 1];
          double total = 0;
          for (int64_t i = 0; i < count; i += kCpuChunk) {
            total += SumOfSquaresOfChunk(values + begin + i,
                                         std::min(kCpuChunk, count - i));
          }
          sum[s] = static_cast<float>(total);
        }
      });
}

// A rank's part of a section, up to element `end`.
struct Part {
  int64_t end = 0;
  bool held = true;   // whether this rank sums its squares
  int64_t shift = 0;  // Division::Shift()
};

// The parts in order, at least one.
std::vector<Part> PartsOf(const GradientShards& shards, int64_t size) {
  std::vector<Part> parts;
  const Sharding& sharding = shards.sharding;
  const Division division =
      sharding.Divide(sharding.divides_gradients(), /*trained=*/0);
  for (const GradientRange& section : shards.sections) {
    for (int shard = 0; shard < sharding.shards; ++shard) {
      parts.push_back(
          {.end = shards.PartOf(section, shard).end / size,
           .held = !shards.divided() || shard == sharding.index,
           .shift = division.Shift(section.begin, section.end) / size});
    }
  }
  if (parts.empty() || shards.sharding.shards == 1) return {Part()};
  return parts;
}

}  // namespace

SumOfSquares::SumOfSquares(at::Tensor flat,
                           absl::Span<const GradientRange> parameters,
                           const GradientShards& shards)
    : flat_(std::move(flat)) {
  TESSERA_CHECK(flat_.is_contiguous(), "not a flat buffer");
  const int64_t size = flat_.element_size();
  const std::vector<Part> parts = PartsOf(shards, size);
  auto part = parts.begin();
  std::vector<int64_t> segments;
  std::vector<GradientRange> in_order(parameters.begin(), parameters.end());
  absl::c_sort(in_order, [](const GradientRange& a, const GradientRange& b) {
    return a.begin < b.begin;
  });
  for (const GradientRange& parameter : in_order) {
    const int64_t end = parameter.end / size;
    for (int64_t begin = parameter.begin / size; begin < end;) {
      while (part + 1 != parts.end() && part->end <= begin) ++part;
      const int64_t limit = part + 1 == parts.end() ? end : part->end;
      const int64_t count = std::min({kSegment, end - begin, limit - begin});
      begins_.push_back(begin);
      segments.insert(segments.end(),
                      {begin - part->shift, part->held ? count : 0});
      begin += count;
    }
  }
  const auto count = static_cast<int64_t>(begins_.size());
  segments_ =
      at::tensor(segments, at::kLong).view({count, 2}).to(flat_.device());
  sums_ = at::zeros({count}, flat_.options().dtype(at::kFloat));
}

absl::Status SumOfSquares::SumSegments(const GradientRange& range) {
  const auto first_from = [&](int64_t byte) {
    return absl::c_lower_bound(begins_, byte / flat_.element_size()) -
           begins_.begin();
  };
  const int64_t begin = first_from(range.begin);
  const int64_t count = first_from(range.end) - begin;
  if (count == 0) return absl::OkStatus();
  const at::Tensor segments = segments_.narrow(0, begin, count);
  const at::Tensor sums = sums_.narrow(0, begin, count);
  if constexpr (kCudaBuild) {
    if (flat_.is_cuda()) return cuda::SumSegments(flat_, segments, sums);
  }
  switch (FloatTypeOf(flat_.scalar_type())) {
    case FloatType::kFloat:
      SumSegmentsOnCpu<float>(flat_, segments, sums);
      break;
    case FloatType::kBFloat16:
      SumSegmentsOnCpu<at::BFloat16>(flat_, segments, sums);
      break;
    case FloatType::kHalf:
      SumSegmentsOnCpu<at::Half>(flat_, segments, sums);
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> SumOfSquares::Total() const {
  if constexpr (kCudaBuild) {
    if (flat_.is_cuda()) {
      at::Tensor total = at::empty({1}, sums_.options());
      RETURN_IF_ERROR(cuda::SumOfSegments(sums_, total));
      return total;
    }
  }
  double total = 0;
  for (const float sum :
       absl::MakeSpan(sums_.const_data_ptr<float>(), begins_.size())) {
    total += sum;
  }
  // Infinity if it exceeds FP32's range, as on a GPU.
  using Limits = std::numeric_limits<float>;
  return at::full(
      {1},
      total > Limits::max() ? Limits::infinity() : static_cast<float>(total),
      sums_.options());
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

at::Tensor NonFiniteGradients(const ParameterStore& store) {
  const auto slices = store.slices();
  const at::Tensor bad = at::zeros({static_cast<int64_t>(slices.size())},
                                   store.grad().options().dtype(at::kLong));
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!slices[i].trainable) continue;
    const HeldRange held = store.HeldOf(store.divisions().gradients, slices[i]);
    const at::Tensor grad = store.grad().narrow(0, held.place, held.numel);
    bad.narrow(0, static_cast<int64_t>(i), 1)
        .copy_(grad.isfinite().all().logical_not());
  }
  return bad;
}

}  // namespace tessera
