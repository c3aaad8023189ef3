#ifndef FRAMEWORK_OPS_QK_NORM_QK_NORM_KERNELS_H_
#define FRAMEWORK_OPS_QK_NORM_QK_NORM_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "framework/program/op.h"

namespace tessera {

// The queries or the keys of all tokens, as rows that are normalised.
struct QkNormSection {
  int64_t offset = 0;  // of a token's first row, in elements
  int64_t rows_per_token = 0;
  int64_t width = 0;     // of a row
  at::Tensor gain;       // [width]
  at::Tensor r;          // [rows]; forward writes, backward reads
  GradTarget gain_grad;  // backward writes, unless it is undefined

  int64_t elements_per_token() const { return rows_per_token * width; }
  int64_t rows() const { return r.numel(); }
};

// Kernels of QkNorm() (qk_norm.h). qkv, y and the gradients are [B, S, heads,
// D], contiguous. There are two sections, queries and keys; what comes after
// them, V, is copied.
struct QkNormKernels {
  using Sections = absl::Span<const QkNormSection>;

  // y may be qkv. All arithmetic has the dtype of r.
  void (*forward)(const at::Tensor& qkv, Sections sections, double eps,
                  const at::Tensor& y);
  // dx may be dy.
  void (*backward)(const at::Tensor& dy, const at::Tensor& qkv,
                   Sections sections, const at::Tensor& dx);

  static const QkNormKernels kReference;
  static const QkNormKernels kCpu;  // FP32
  // r in FP32; rows up to RmsNormKernels::kLongestCudaRow.
  static const QkNormKernels kCuda;
};

// Gradients of gains are summed in two steps, as RmsNorm()'s is. On a CPU a
// partial sum takes fewer rows, because a token has many of them.
inline constexpr int64_t kQkNormCpuRowsPerSum = 16;
inline int64_t QkNormCpuSums(int64_t rows) {
  return (rows + kQkNormCpuRowsPerSum - 1) / kQkNormCpuRowsPerSum;
}

// Offset of V within a token.
inline int64_t ValuesOffset(QkNormKernels::Sections sections) {
  return sections.back().offset + sections.back().elements_per_token();
}

// Whether two tensors are the same memory.
inline bool InPlace(const at::Tensor& from, const at::Tensor& to) {
  return from.const_data_ptr() == to.const_data_ptr();
}

// Copies V, unless the tensors are the same memory.
inline void CopyValues(const at::Tensor& from, QkNormKernels::Sections sections,
                       const at::Tensor& to) {
  if (InPlace(from, to)) return;
  const int64_t token = from.size(2) * from.size(3);
  const int64_t offset = ValuesOffset(sections);
  const auto values = [&](const at::Tensor& x) {
    return x.view({-1, token}).narrow(1, offset, token - offset);
  };
  values(to).copy_(values(from));
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_QK_NORM_QK_NORM_KERNELS_H_
