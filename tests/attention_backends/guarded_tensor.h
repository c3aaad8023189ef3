#ifndef TESTS_ATTENTION_BACKENDS_GUARDED_TENSOR_H_
#define TESTS_ATTENTION_BACKENDS_GUARDED_TENSOR_H_

#include "ATen/core/Tensor.h"

namespace tessera::testing {

// A [B, heads, S, D] slice of a fused projection, [B, rows, heads, D], with NaN
// in the adjacent heads and in the rows before and after it: results show reads
// past the slice, IsIntact() shows writes past it.
class GuardedTensor {
 public:
  explicit GuardedTensor(const at::Tensor& values_bhsd);
  // A slice filled with NaN.
  static GuardedTensor Unwritten(const at::Tensor& like_bhsd);

  const at::Tensor& slice() const { return slice_; }
  // Whether the guards are still NaN.
  bool IsIntact() const;
  // Whether, in addition, the slice still holds its original values.
  bool IsUnchanged() const;

 private:
  at::Tensor values_, fused_, slice_;
};

// A dense copy of a dense tensor, with NaN before and after it.
class DenseBetweenNans {
 public:
  explicit DenseBetweenNans(const at::Tensor& dense);

  const at::Tensor& tensor() const { return tensor_; }
  // Whether the guards are still NaN and the tensor holds its original values.
  bool IsUnchanged() const;

 private:
  at::Tensor values_, all_, tensor_;
};

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_GUARDED_TENSOR_H_
