#include "framework/optim/optimizer_kernels.h"

#include <ATen/ATen.h>

#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/optim/adamw_kernel.h"
#include "framework/optim/muon_kernel.h"
#include "framework/optim/sum_of_squares_kernel.h"
#include "framework/optim/symmetric_product_kernel.h"

namespace tessera {
namespace cuda {

absl::Status SumSegments(const at::Tensor& flat, const at::Tensor& segments,
                         const at::Tensor& sums) {
  return Launch(flat, "the gradient norm's kernel", LaunchSumSegments,
                flat.const_data_ptr(), FloatTypeOf(flat),
                static_cast<const SquaresSegment*>(segments.const_data_ptr()),
                static_cast<int>(sums.numel()), sums.data_ptr<float>());
}

absl::Status SumOfSegments(const at::Tensor& sums, const at::Tensor& total) {
  return Launch(sums, "the gradient norm's kernel", LaunchSumOfSegments,
                sums.const_data_ptr<float>(), static_cast<int>(sums.numel()),
                total.data_ptr<float>());
}

absl::Status PrepareAdamW(const AdamWScalars& scalars,
                          const AdamWOptions& options,
                          const at::Tensor& prepared) {
  return Launch(prepared, "AdamW's kernel", LaunchAdamWPrepare, scalars,
                options, static_cast<AdamWCoefficients*>(prepared.data_ptr()));
}

absl::Status UpdateAdamW(const AdamWBuffers& buffers, int64_t begin,
                         int64_t end, const bool* skips,
                         const at::Tensor& prepared) {
  return Launch(prepared, "AdamW's kernel", LaunchAdamWUpdate, buffers, begin,
                end, skips,
                static_cast<const AdamWCoefficients*>(prepared.data_ptr()));
}

absl::Status PassEma(const AdamWBuffers& buffers, const EmaBuffers& ema,
                     EmaPass pass, int64_t begin, int64_t end,
                     const at::Tensor& on) {
  return Launch(on, "the weight average's kernel", LaunchEma, buffers, ema,
                pass, begin, end);
}

absl::Status UpdateMuonMomentum(const MuonBuffers& buffers,
                                const MuonOptions& options,
                                const at::Tensor& on) {
  return Launch(on, "Muon's kernel", LaunchMuonMomentum, buffers, options);
}

absl::Status UpdateMuonRows(const MuonBuffers& buffers,
                            const MuonOptions& options, const at::Tensor& on) {
  return Launch(on, "Muon's kernel", LaunchMuonRows, buffers, options);
}

absl::Status UpdateMuonWeights(const MuonBuffers& buffers,
                               const MuonOptions& options,
                               const at::Tensor& on) {
  return Launch(on, "Muon's kernel", LaunchMuonWeights, buffers, options);
}

absl::Status MultiplySymmetric(const at::Tensor& d, const at::Tensor& a,
                               const at::Tensor& b, const SymmetricSum& sum,
                               const at::Tensor& c) {
  // A times itself is A A^T, whose halves are equal. Of two matrices, A^T B:
  // rounding leaves them not quite symmetric, and in an iteration the error of
  // A B^T would grow.
  const bool of_one = a.const_data_ptr() == b.const_data_ptr();
  const SymmetricProductParams params = {
      .count = a.size(0),
      .n = a.size(1),
      .k = a.size(2),
      .transposed = !of_one || a.stride(2) != 1,
      .a = a.const_data_ptr(),
      .b = b.const_data_ptr(),
      .c = sum.beta != 0 ? c.const_data_ptr() : nullptr,
      .d = d.data_ptr(),
      .alpha = static_cast<float>(sum.alpha),
      .beta = static_cast<float>(sum.beta),
      .diagonal = static_cast<float>(sum.diagonal)};
  return Launch(d, "the symmetric product's kernel", LaunchSymmetricProduct,
                params);
}

}  // namespace cuda
}  // namespace tessera
