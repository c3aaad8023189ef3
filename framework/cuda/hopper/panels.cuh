#ifndef FRAMEWORK_CUDA_HOPPER_PANELS_CUH_
#define FRAMEWORK_CUDA_HOPPER_PANELS_CUH_

#include <cuda.h>

#include <cstdint>

#include "framework/cuda/hopper/ptx.cuh"
#include "framework/cuda/instructions.cuh"

namespace tessera {

// A [kRows, kColumns] tile of 2-byte elements in shared memory, as the copy
// engine writes it and the tensor cores read it: successive panels of kWidth
// columns, each row-major with swizzled 16-byte pieces.
//
// kWidth is the widest swizzle span that divides the columns: 64 (128 bytes)
// for 64 and 128 columns, 32 for 96, 16 for 80. So 80 columns are 5 panels of
// 32 bytes and no product is spent on padding.
template <int kRows_, int kColumns_>
struct Panels {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kWidth =
      kColumns % 64 == 0 ? 64 : (kColumns % 32 == 0 ? 32 : 16);
  static constexpr int kCount = kColumns / kWidth;
  static constexpr int kRowBytes = 2 * kWidth;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kCount * kPanelBytes;
  // Alignment of the first byte: eight rows, after which the swizzle repeats.
  static constexpr int kAlignment = 8 * kRowBytes;
  static_assert(kColumns % 16 == 0 && kRows % 8 == 0);

  // Offset of a 16-byte piece from the tile's first byte.
  __device__ static constexpr int Offset(int row, int column) {
    const int linear = row * kRowBytes + column % kWidth * 2;
    const int swizzle = (linear >> 7) & (kRowBytes / 16 - 1);
    return column / kWidth * kPanelBytes + (linear ^ (swizzle << 4));
  }

  // Descriptor for products over the columns (K = 16 columns from `column` on),
  // from row `row` (a multiple of 8) on.
  __device__ __forceinline__ static uint64_t KMajor(uint32_t tile, int row,
                                                    int column) {
    const uint32_t start = tile + column / kWidth * kPanelBytes +
                           row * kRowBytes + column % kWidth * 2;
    return Descriptor(start, /*leading=*/16);
  }
  // Descriptor for products over the rows (K = 16 rows from `row` on), with all
  // columns from `column` (a multiple of kWidth) on.
  __device__ __forceinline__ static uint64_t MnMajor(uint32_t tile, int row,
                                                     int column = 0) {
    const uint32_t start =
        tile + column / kWidth * kPanelBytes + row * kRowBytes;
    return Descriptor(start, /*leading=*/kPanelBytes);
  }

 private:
  // PTX ISA, "Matrix descriptor": addresses are in units of 16 bytes; the
  // stride is between groups of eight rows; modes 1, 2, 3 swizzle 128, 64, 32
  // bytes.
  __device__ __forceinline__ static uint64_t Descriptor(uint32_t start,
                                                        uint32_t leading) {
    constexpr uint64_t kMode = kWidth == 64 ? 1 : (kWidth == 32 ? 2 : 3);
    return static_cast<uint64_t>((start & 0x3FFFF) >> 4) |
           static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(kAlignment >> 4) << 32 | kMode << 62;
  }
};

// The address that this thread passes to LoadMatrices() or StoreMatrices() to
// move a fragment (wgmma.cuh), rounded and packed: its warp's part of 16
// columns, from `column` on, of a warpgroup's 64 rows.
template <typename Tile>
__device__ __forceinline__ uint32_t FragmentAddress(uint32_t tile,
                                                    int first_row, int column) {
  const int lane = threadIdx.x % 32;
  const int row = first_row + threadIdx.x % 128 / 32 * 16 + lane % 16;
  return tile + Tile::Offset(row, column + lane / 16 * 8);
}
template <typename Tile>
__device__ __forceinline__ void LoadFragment(uint32_t tile, int first_row,
                                             int column,
                                             uint32_t (&packed)[4]) {
  LoadMatrices(FragmentAddress<Tile>(tile, first_row, column), packed);
}
template <typename Tile>
__device__ __forceinline__ void StoreFragment(uint32_t tile, int first_row,
                                              int column,
                                              const uint32_t (&packed)[4]) {
  StoreMatrices(FragmentAddress<Tile>(tile, first_row, column), packed);
}

// Stores the same fragment transposed: 16 rows of the tile, from `first_row`
// on, and its warp's part of 64 columns, from `column` on.
template <typename Tile>
__device__ __forceinline__ void StoreTransposedFragment(
    uint32_t tile, int first_row, int column, const uint32_t (&packed)[4]) {
  const int lane = threadIdx.x % 32;
  const int row = first_row + lane / 16 * 8 + lane % 8;
  column += threadIdx.x % 128 / 32 * 16 + lane / 8 % 2 * 8;
  StoreMatricesTransposed(tile + Tile::Offset(row, column), packed);
}

// Stores rows of a tile, from `first_row` on, to `to` by the copy engine; the
// map's box sets how many. Called by one thread.
template <typename Tile>
__device__ __forceinline__ void TmaStoreRows(const CUtensorMap& map,
                                             const uint8_t* tile, int first_row,
                                             TileCoordinate to) {
#pragma unroll
  for (int panel = 0; panel < Tile::kCount; ++panel) {
    to.column = panel * Tile::kWidth;
    TmaStore(map, to,
             tile + panel * Tile::kPanelBytes + first_row * Tile::kRowBytes);
  }
  TmaCommit();
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_HOPPER_PANELS_CUH_
