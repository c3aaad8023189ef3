#ifndef FRAMEWORK_OPS_LINEAR_FEW_ROWS_H_
#define FRAMEWORK_OPS_LINEAR_FEW_ROWS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"

namespace tessera {

// The products of few rows, such as those of a token that follows a text, have
// a kernel of their own on a GPU. They are bound by reading the weight.
inline constexpr int64_t kMostFewRows = 4;

inline bool IsFewRows(int64_t rows, int64_t in, at::ScalarType operands) {
  return rows <= kMostFewRows && in % 8 == 0 &&
         (operands == at::kBFloat16 || operands == at::kHalf);
}

// y = x W^T if IsFewRows(); x: [rows, in], W: [out, in], y: [rows, out], all
// contiguous. Only in CUDA builds. Throws LibTorch's exceptions.
void MultiplyFewRows(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& y);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_FEW_ROWS_H_
