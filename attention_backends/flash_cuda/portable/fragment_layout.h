#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FRAGMENT_LAYOUT_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FRAGMENT_LAYOUT_H_

#include <cstdint>

#include "framework/cuda/host_device.h"

// Which lane holds which element in mma.sync.m16n8k16 with 16-bit operands, in
// m16n8k8 with TF32, and in ldmatrix (PTX ISA, "Matrix Fragments for
// mma.m16n8k16", "mma.m16n8k8" and "ldmatrix"), and the layout of tiles in
// shared memory. Plain arithmetic, tested on a CPU. T is an operand's element
// in memory: 16 bits, or float, which is multiplied in TF32.

namespace tessera {
namespace flash {
namespace portable {

// ldmatrix and cp.async move 16 bytes: eight 16-bit elements or four floats.
inline constexpr int kChunkBytes = 16;
template <typename T>
inline constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T));

// An operand fragment has 16 rows of two chunks.
template <typename T>
inline constexpr int kFragment = 2 * kChunk<T>;

// A row-major tile, kCols wide, in shared memory. The chunks of a row are
// permuted so that chunk c of eight consecutive rows, which one phase of
// ldmatrix reads, lies in eight different groups of four banks. How often the
// permutation changes depends on the distance between rows modulo the 128 bytes
// of all banks: every row for 128 (64 columns of 16 bits), every second row for
// 64 (96 of 16 bits, 80 floats), every fourth for 32 (80 of 16 bits).
template <typename T, int kCols>
struct TileLayout {
  static constexpr int kChunks = kCols / kChunk<T>;
  static constexpr int kRowBytes = kCols * static_cast<int>(sizeof(T));
  static constexpr int kShift = kChunks % 8 == 0 ? 0 : kChunks % 4 == 0 ? 1 : 2;
  // The permuted bits of a chunk's index.
  static constexpr int kMask = 7 >> kShift;
  static_assert(kCols % 16 == 0, "mma takes 16 columns");

  static TESSERA_HOST_DEVICE int Key(int row) { return row >> kShift & kMask; }

  // Offset from the tile's start, in bytes.
  static TESSERA_HOST_DEVICE int Offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ Key(row)) * kChunkBytes;
  }
};

struct TilePosition {
  int row, chunk;
};

// The row of eight elements whose address a lane passes to ldmatrix.x4 so that
// the four registers become
//   - the A operand (16 x 16) of a row-major tile,
//   - transposed: the B operands (16 x 8, twice) of a tile of rows k.
TESSERA_HOST_DEVICE TilePosition RowsFirst(int lane) {
  return {lane % 16, lane / 16};
}

//   - the B operands (16 x 8, twice) of a tile of rows n,
//   - transposed: the A operand (16 x 16) of a tile of rows k.
TESSERA_HOST_DEVICE TilePosition ChunksFirst(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

// The place of element e of a lane's accumulator in the 16 x 8 result.
TESSERA_HOST_DEVICE int AccumulatorRow(int lane, int e) {
  return lane / 4 + e / 2 * 8;
}
TESSERA_HOST_DEVICE int AccumulatorCol(int lane, int e) {
  return lane % 4 * 2 + e % 2;
}

// A lane's addresses in a tile of kCols columns, in bytes. `tile` is the
// address of a row that is a multiple of 8, or of an element in its first
// chunk, so the permuted bits of the address are clear: another chunk costs one
// exclusive or, another row is a constant in the instruction. `first_chunk`
// shifts all chunks; the arguments of At() must not have its bits set.
template <typename T, int kCols>
class LaneAddress {
 public:
  using Layout = TileLayout<T, kCols>;

  TESSERA_HOST_DEVICE LaneAddress(uint32_t tile, TilePosition lane,
                                  int first_chunk = 0)
      : address_(tile + lane.row * Layout::kRowBytes +
                 ((lane.chunk ^ Layout::Key(lane.row)) ^ first_chunk) *
                     kChunkBytes) {}

  // `row` is a multiple of 8, `chunk` of 2.
  TESSERA_HOST_DEVICE uint32_t At(int row, int chunk) const {
    return (address_ ^ (chunk & Layout::kMask) * kChunkBytes) +
           row * Layout::kRowBytes + (chunk & ~Layout::kMask) * kChunkBytes;
  }

 private:
  uint32_t address_;
};

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FRAGMENT_LAYOUT_H_
