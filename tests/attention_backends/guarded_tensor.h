#ifndef TESTS_ATTENTION_BACKENDS_GUARDED_TENSOR_H_
#define TESTS_ATTENTION_BACKENDS_GUARDED_TENSOR_H_

#include "ATen/core/Tensor.h"

namespace tessera::testing {

// A [B, heads, S, D] slice of a fused projection, [B, rows, heads, D], with NaN
// in the heads beside it and in the rows before and behind it: reading past the
// slice shows in results, writing past it here.
class GuardedTensor {
 public:
  explicit GuardedTensor(const at::Tensor& values_bhsd);
  // Of NaN.
  static GuardedTensor Unwritten(const at::Tensor& like_bhsd);

  const at::Tensor& slice() const { return slice_; }
  // The guards are still NaN.
  bool IsIntact() const;
  // And the slice still holds its first values.
  bool IsUnchanged() const;

 private:
  at::Tensor values_, fused_, slice_;
};

// A copy of a dense tensor, as dense, with NaN before and behind it.
class DenseBetweenNans {
 public:
  explicit DenseBetweenNans(const at::Tensor& dense);

  const at::Tensor& tensor() const { return tensor_; }
  // The guards are still NaN, and the tensor holds its first values.
  bool IsUnchanged() const;

 private:
  at::Tensor values_, all_, tensor_;
};

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_GUARDED_TENSOR_H_
