#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FRAGMENT_LAYOUT_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FRAGMENT_LAYOUT_H_

#include <cstdint>

#include "framework/cuda/host_device.h"

// Which lane holds which element: of mma.sync.m16n8k16 with 16-bit operands,
// of ldmatrix, and of tiles in shared memory. PTX ISA, "Matrix Fragments for
// mma.m16n8k16" and "ldmatrix". Plain arithmetic, tested on a CPU.

namespace tessera {
namespace flash {
namespace portable {

// ldmatrix and cp.async move 16 bytes: eight 16-bit elements.
inline constexpr int kChunk = 8;
inline constexpr int kChunkBytes = 16;

// A row-major tile of 16-bit elements, kCols wide, in shared memory. The chunks
// of a row are permuted so that chunk c of eight consecutive rows (what one
// phase of ldmatrix reads) lies in eight different groups of four banks. How
// far apart rows start modulo the 128 bytes of all banks decides which rows
// need other chunks: all eight for 128 (kCols a multiple of 64), every second
// for 64 (32, 96), every fourth for 32 (80).
template <int kCols>
struct TileLayout {
  static constexpr int kChunks = kCols / kChunk;
  static constexpr int kRowBytes = kCols * 2;
  static constexpr int kShift = kChunks % 8 == 0 ? 0 : kChunks % 4 == 0 ? 1 : 2;
  // The bits of a chunk's index that are permuted.
  static constexpr int kMask = 7 >> kShift;
  static_assert(kCols % 16 == 0, "mma takes 16 columns");

  static TESSERA_HOST_DEVICE int Key(int row) { return row >> kShift & kMask; }

  // Bytes from the tile's start.
  static TESSERA_HOST_DEVICE int Offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ Key(row)) * kChunkBytes;
  }
};

struct TilePosition {
  int row, chunk;
};

// The row of eight elements that a lane points ldmatrix.x4 at, so that the four
// registers come out as
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

// Where element e of a lane's accumulator lies in the 16 x 8 result.
TESSERA_HOST_DEVICE int AccumulatorRow(int lane, int e) {
  return lane / 4 + e / 2 * 8;
}
TESSERA_HOST_DEVICE int AccumulatorCol(int lane, int e) {
  return lane % 4 * 2 + e % 2;
}

// A lane's ldmatrix addresses in a tile of kCols columns, in bytes. `tile` is
// the address of a row that is a multiple of 8, which leaves the permuted bits
// of an address clear: another chunk is one exclusive or away, another row a
// constant that the instruction adds. `first_chunk` shifts all of them; its
// bits must not be set in the chunks asked for.
template <int kCols>
class LaneAddress {
 public:
  using Layout = TileLayout<kCols>;

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
