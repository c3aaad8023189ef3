#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_LAUNCH_SHAPE_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_LAUNCH_SHAPE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/launch_kernel.cuh"

namespace tessera {
namespace flash {
namespace fp32 {

inline int64_t TilesOf(int64_t rows, int64_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// The launch of one CUDA block per tile of `tile_rows` rows, in `heads` heads
// of `rows` rows.
template <typename Tiles>
LaunchShape ShapeFor(int64_t rows, int tile_rows, int64_t heads) {
  return {.blocks = TilesOf(rows, tile_rows) * heads,
          .threads = kThreads,
          .shared_bytes = Tiles::kSharedBytes};
}

// Whether `blocks` CUDA blocks are two for each multiprocessor of the current
// device.
inline bool FillsDevice(int64_t blocks) {
  int device = 0, multiprocessors = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&multiprocessors,
                                cudaDevAttrMultiProcessorCount,
                                device) == cudaSuccess &&
         blocks >= 2 * multiprocessors;
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_LAUNCH_SHAPE_CUH_
