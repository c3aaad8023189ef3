#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HEAD_ROWS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HEAD_ROWS_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"

namespace tessera {
namespace flash {

__device__ __forceinline__ int Lane() { return threadIdx.x % 32; }
__device__ __forceinline__ int Warp() { return threadIdx.x / 32; }

// One head of one sequence: a `rows` x `cols` matrix in global memory.
template <typename T>
struct HeadRows {
  T* data;
  int64_t row_stride;
  int rows, cols;
};

template <typename T>
__device__ __forceinline__ HeadRows<T> RowsOf(const HeadView& view, int batch,
                                              int head, int rows, int cols) {
  return {static_cast<T*>(view.data) + batch * view.batch_stride +
              head * view.head_stride,
          view.row_stride, rows, cols};
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HEAD_ROWS_CUH_
