#include "attention_backends/compiled_fused/softmax.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Dispatch.h"
#include "ATen/Parallel.h"
#include "attention_backends/compiled_fused/host_softmax.h"
#include "attention_backends/compiled_fused/softmax_launch.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/float_type_of.h"

namespace tessera {
namespace fused {
namespace {

// Minimum number of rows per CPU thread: about 32 KiB of scores.
int64_t RowGrain(const RowMask& mask) {
  return std::max<int64_t>(1, 8192 / mask.keys);
}

RowExtent ExtentOf(const RowMask& mask, int64_t row) {
  const int64_t query = row % mask.queries;
  return {mask.Visible(query), mask.Written(query)};
}

void HostForward(const RowMask& mask, const at::Tensor& scores,
                 const at::Tensor& lse_bhs) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, scores.scalar_type(), "softmax", [&] {
        using Statistic = HostStatistic<scalar_t>::Type;
        scalar_t* const data = scores.mutable_data_ptr<scalar_t>();
        Statistic* const lse =
            lse_bhs.defined() ? lse_bhs.mutable_data_ptr<Statistic>() : nullptr;
        const auto rows = [&](int64_t begin, int64_t end) {
          std::vector<Statistic> scratch(mask.keys);
          for (int64_t row = begin; row < end; ++row) {
            const Statistic l = HostSoftmaxRow(
                ExtentOf(mask, row), scratch.data(), data + row * mask.keys);
            if (lse != nullptr) lse[row] = l;
          }
        };
        at::parallel_for(0, scores.numel() / mask.keys, RowGrain(mask), rows);
      });
}

void HostBackward(const RowMask& mask, const at::Tensor& p,
                  const at::Tensor& d_o, const at::Tensor& o,
                  const at::Tensor& d_p) {
  const int64_t heads = o.size(1), d = o.size(3);
  const auto offset = [&](const at::Tensor& x, int64_t row) {
    const int64_t head = row / mask.queries;
    return head / heads * x.stride(0) + head % heads * x.stride(1) +
           row % mask.queries * x.stride(2);
  };
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, p.scalar_type(), "softmax_backward", [&] {
        const scalar_t* const d_o_data = d_o.const_data_ptr<scalar_t>();
        const scalar_t* const o_data = o.const_data_ptr<scalar_t>();
        const scalar_t* const p_data = p.const_data_ptr<scalar_t>();
        scalar_t* const d_p_data = d_p.mutable_data_ptr<scalar_t>();
        const auto rows = [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const auto delta = HostDot(d_o_data + offset(d_o, row),
                                       o_data + offset(o, row), d);
            HostSoftmaxBackwardRow(ExtentOf(mask, row),
                                   p_data + row * mask.keys, delta,
                                   d_p_data + row * mask.keys);
          }
        };
        at::parallel_for(0, p.numel() / mask.keys, RowGrain(mask), rows);
      });
}

HeadRows RowsOf(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

template <typename Call>
absl::Status LaunchIfBuilt(const Call& call, c10::Device device) {
  if constexpr (kCudaBuild) return Launch(call, device);
  return absl::UnimplementedError(
      "COMPILED_FUSED: this build has no CUDA; build with --config=cuda");
}

}  // namespace

absl::Status SoftmaxInPlace(const RowMask& mask, const at::Tensor& scores_bhst,
                            const at::Tensor& lse_bhs) {
  if (!scores_bhst.is_cuda()) {
    HostForward(mask, scores_bhst, lse_bhs);
    return absl::OkStatus();
  }
  SoftmaxForwardCall call;
  call.spec = {FloatTypeOf(scores_bhst), mask};
  call.rows = scores_bhst.numel() / mask.keys;
  call.scores = scores_bhst.mutable_data_ptr();
  call.lse = lse_bhs.defined() ? lse_bhs.mutable_data_ptr<float>() : nullptr;
  return LaunchIfBuilt(call, scores_bhst.device());
}

absl::Status SoftmaxBackwardInPlace(const RowMask& mask,
                                    const at::Tensor& p_bhst,
                                    const at::Tensor& d_o_bhsd,
                                    const at::Tensor& o_bhsd,
                                    const at::Tensor& d_p_bhst) {
  if (!p_bhst.is_cuda()) {
    HostBackward(mask, p_bhst, d_o_bhsd, o_bhsd, d_p_bhst);
    return absl::OkStatus();
  }
  SoftmaxBackwardCall call;
  call.spec = {FloatTypeOf(p_bhst), mask};
  call.rows = p_bhst.numel() / mask.keys;
  call.p = p_bhst.const_data_ptr();
  call.d_p = d_p_bhst.mutable_data_ptr();
  call.d_o = RowsOf(d_o_bhsd);
  call.o = RowsOf(o_bhsd);
  call.heads = static_cast<int>(o_bhsd.size(1));
  call.head_dim = static_cast<int>(o_bhsd.size(3));
  return LaunchIfBuilt(call, p_bhst.device());
}

}  // namespace fused
}  // namespace tessera
