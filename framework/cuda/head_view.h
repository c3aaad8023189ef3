#ifndef FRAMEWORK_CUDA_HEAD_VIEW_H_
#define FRAMEWORK_CUDA_HEAD_VIEW_H_

#include <cstdint>

namespace tessera {

// A [B, heads, rows, D] view with D contiguous. Strides count elements and are
// arbitrary, as in slices of a fused projection; data and strides are multiples
// of 16 bytes.
struct HeadView {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_HEAD_VIEW_H_
