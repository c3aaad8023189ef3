#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_SIZES_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_SIZES_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/head_dims.h"
#include "attention_backends/flash_cuda/with_head_dim.h"
#include "framework/cuda/host_device.h"

// The tiles of the FP32 kernels, per compiled head dim. Includes no CUDA: the
// host allocates shared memory by the same numbers.
//
// Products are fused multiply-adds of operands in shared memory. A thread
// computes a rectangle of the result, kRows x kCols, and needs kRows + kCols
// numbers for kRows kCols multiply-adds. In a cycle, a multiprocessor of
// compute capability 9.0 does 128 multiply-adds and reads 32 numbers, each for
// all threads that need it. The threads of a warp are 4 x 8 rectangles, so that
// a 128-bit load of one operand takes two cycles and brings four columns: 8 x 8
// rectangles keep shared memory busy half of the time, 8 x 4 three quarters,
// 4 x 4 all of it. Hence 8 rows if a thread's part of each result, kRows
// head_dim / 8 numbers, fits in its 255 registers.
//
// Two CUDA blocks of four warps on a multiprocessor hide each other's stalls:
// they share its 65,536 registers and, on compute capability 9.0, 227 KiB.

namespace tessera {
namespace flash {
namespace fp32 {

// Calls fn with the head dim of the kernels that run p and with whether they
// cap scores, as std::integral_constants. Surplus columns cost nothing in
// products over columns and are wasted work in the others.
template <typename Fn>
auto WithKernels(const ForwardParams& p, const Fn& fn) {
  return flash::WithKernels(HeadDims(), SoftCapHeadDims(), p.soft_cap != 0, p.d,
                            fn);
}

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
// A warp's rectangles: 4 rows of 8.
inline constexpr int kRowLanes = 4, kColLanes = 8;

// A CUDA block holds a tile of queries and steps over tiles of keys. A warp
// owns 4 kRows queries and computes all of their scores and outputs. Large
// tiles ("blocks": CUDA blocks per multiprocessor):
//
//   head dim             32     64     96    128    192    256
//   queries x keys   128x64 128x64 128x32 128x32  64x32  64x32
//   rows x cols         8x8    8x8    8x4    8x4    4x4    4x4
//   registers: S         64     64     32     32     16     16
//              O         32     64     96    128     96    128
//   shared KiB           64     96     88    112    104    136
//   blocks                2      2      2      2      2      1
template <int kColumns, int kRectangleRows>
struct ForwardTiles {
  static constexpr int kHeadDim = kColumns, kRows = kRectangleRows;
  static constexpr int kCols = kHeadDim <= 64 ? 8 : 4;
  static constexpr int kQueries = kWarps * kRowLanes * kRows;
  static constexpr int kKeys = kColLanes * kCols;
  static constexpr int kBlocks = kHeadDim <= 192 ? 2 : 1;

  // Sizes in floats. One tile each of Q, K, V and P: K is multiplied while V
  // arrives, and vice versa.
  static constexpr int kQSize = kQueries * kHeadDim;
  static constexpr int kKSize = kKeys * kHeadDim;
  static constexpr int kPSize = kQueries * kKeys;
  static constexpr int kSharedBytes = (kQSize + 2 * kKSize + kPSize) * 4;
};

// A CUDA block holds a tile of keys (K and V, for dK and dV) and steps over
// tiles of queries (Q and dO), or holds queries (for dQ) and steps over keys,
// with the same sizes. A warp owns 4 kRows held rows. Large tiles:
//
//   head dim             32     64     96    128    192    256
//   held x streamed  128x32 128x32  64x32  64x32  64x32  32x32
//   rows x cols         8x4    8x4    4x4    4x4    4x4    2x4
//   registers: P, dS     64     64     32     32     32     16
//              dK, dV    64    128     96    128    192    128
//   shared KiB           57     97     81    105    153    133
//   blocks                2      2      2      2      1      1
template <int kColumns, int kRectangleRows>
struct BackwardTiles {
  static constexpr int kHeadDim = kColumns, kRows = kRectangleRows;
  static constexpr int kCols = 4;
  static constexpr int kHeld = kWarps * kRowLanes * kRows;
  static constexpr int kStreamed = kColLanes * kCols;
  static constexpr int kBlocks = kHeadDim <= 128 ? 2 : 1;

  // Sizes in floats: two held tiles, two streamed tiles, P or dS, and two
  // statistics of each streamed query.
  static constexpr int kHeldSize = kHeld * kHeadDim;
  static constexpr int kStreamedSize = kStreamed * kHeadDim;
  static constexpr int kScoresSize = kHeld * kStreamed;
  static constexpr int kStatisticsSize = 2 * kStreamed;
  static constexpr int kSharedBytes =
      (2 * kHeldSize + 2 * kStreamedSize + kScoresSize + kStatisticsSize) * 4;
};

// Large tiles have as many rows as registers allow. Small tiles have at most 4,
// for problems that would otherwise have too few CUDA blocks to fill a GPU.
template <int kHeadDim>
using LargeForwardTiles = ForwardTiles<kHeadDim, kHeadDim <= 128 ? 8 : 4>;
template <int kHeadDim>
using SmallForwardTiles = ForwardTiles<kHeadDim, 4>;
template <int kHeadDim>
using LargeBackwardTiles = BackwardTiles<kHeadDim, kHeadDim <= 64    ? 8
                                                   : kHeadDim <= 192 ? 4
                                                                     : 2>;
template <int kHeadDim>
using SmallBackwardTiles = BackwardTiles<kHeadDim, kHeadDim <= 192 ? 4 : 2>;

// Floats that are moved at a time.
inline constexpr int kChunk = 4;

// A row-major tile in shared memory, kCols wide. The chunks of a row are
// permuted so that a chunk of rows 4 or 8 apart, which rectangles of 4 or 8
// rows load at once, lies in different groups of four banks. Only rectangles of
// two rows have bank conflicts (backward pass, head dim 256).
template <int kCols>
struct TileLayout {
  static constexpr int kChunks = kCols / kChunk;
  static_assert(kChunks % 8 == 0, "rows start at bank 0");

  // The position in the tile, in chunks.
  static TESSERA_HOST_DEVICE int Index(int row, int chunk) {
    return row * kChunks + (chunk ^ (row / 4 % 8));
  }
};

// A lane's place among the 4 x 8 rectangles of its warp. Lanes that differ in
// bit 0 share columns, lanes that differ in bit 1 share rows: the quarters of a
// 128-bit load that read the same data are then served together.
TESSERA_HOST_DEVICE int LaneRow(int lane) { return lane % 2 + lane / 16 * 2; }
TESSERA_HOST_DEVICE int LaneCol(int lane) { return lane / 2 % 8; }

// Column n of a lane's rectangle, which consists of chunks, eight apart.
TESSERA_HOST_DEVICE int ColumnOf(int lane, int n) {
  return n / kChunk * kColLanes * kChunk + LaneCol(lane) * kChunk + n % kChunk;
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_SIZES_H_
