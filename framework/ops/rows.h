#ifndef FRAMEWORK_OPS_ROWS_H_
#define FRAMEWORK_OPS_ROWS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

// Helpers for ops that work on the rows of [..., C].

namespace tessera {

inline int64_t RowCount(const at::Tensor& x) {
  return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
}

// [..., C] as [rows, C]; a view if the strides allow it.
inline at::Tensor Rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// Contiguous [..., C] or [..., heads, D] as [rows, width]; a view.
inline at::Tensor RowsOf(const at::Tensor& x, int64_t width) {
  return x.view({-1, width});
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_ROWS_H_
