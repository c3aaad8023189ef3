// The layouts of the FP32 kernels, without a GPU; the conformance suite tests
// their results.

#include <cstdint>
#include <set>
#include <utility>

#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/fp32/workspace.h"
#include "gtest/gtest.h"

namespace tessera {
namespace flash {
namespace fp32 {
namespace {

constexpr int kLanes = 32;

TEST(Fp32Lanes, HoldTheWholeRectangleOnce) {
  constexpr int kCols = 8;
  std::set<std::pair<int, int>> elements;
  for (int lane = 0; lane < kLanes; ++lane) {
    ASSERT_LT(LaneRow(lane), kRowLanes);
    for (int n = 0; n < kCols; ++n) {
      ASSERT_LT(ColumnOf(lane, n), kColLanes * kCols);
      elements.insert({LaneRow(lane), ColumnOf(lane, n)});
    }
  }
  EXPECT_EQ(elements.size(), kRowLanes * kColLanes * kCols);
}

// The condition under which the quarters of a 128-bit load are served together.
TEST(Fp32Lanes, NeighboursShareColumnsOrRows) {
  for (int lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(LaneCol(lane), LaneCol(lane ^ 1));
    EXPECT_EQ(LaneRow(lane), LaneRow(lane ^ 2));
  }
}

template <int kCols>
void ExpectLayoutIsAPermutation() {
  constexpr int kRows = 64;
  std::set<int> chunks;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < kCols / kChunk; ++chunk) {
      const int index = TileLayout<kCols>::Index(row, chunk);
      EXPECT_EQ(index / (kCols / kChunk), row);
      chunks.insert(index);
      // The distances that Tile::At() promises.
      EXPECT_EQ(index - row % 4 * (kCols / kChunk),
                TileLayout<kCols>::Index(row / 4 * 4, chunk));
      if (chunk >= 8) {
        EXPECT_EQ(index, TileLayout<kCols>::Index(row, chunk - 8) + 8);
      }
    }
  }
  EXPECT_EQ(chunks.size(), kRows * kCols / kChunk);
}

TEST(Fp32Tile, LayoutIsAPermutation) {
  ExpectLayoutIsAPermutation<32>();
  ExpectLayoutIsAPermutation<64>();
  ExpectLayoutIsAPermutation<96>();
  ExpectLayoutIsAPermutation<192>();
}

// Checks that 16 lanes, which load in one cycle, read different groups of four
// banks. `index_of(lane)` is the chunk that a lane loads.
template <typename Fn>
void ExpectNoBankConflict(const Fn& index_of) {
  for (int first = 0; first < kLanes; first += 16) {
    std::set<int> chunks, banks;
    for (int lane = first; lane < first + 16; ++lane) {
      chunks.insert(index_of(lane));
      banks.insert(index_of(lane) % 8);
    }
    EXPECT_EQ(chunks.size(), banks.size());
  }
}

template <int kCols, int kRows>
void ExpectLoadsHaveNoBankConflict() {
  using Layout = TileLayout<kCols>;
  for (int chunk = 0; chunk < kCols / kChunk; ++chunk) {
    for (int i = 0; i < kChunk; ++i) {
      // The rows of A, and those of B as columns of A B^T.
      ExpectNoBankConflict([&](int lane) {
        return Layout::Index(LaneRow(lane) * kRows + i % kRows, chunk);
      });
      ExpectNoBankConflict(
          [&](int lane) { return Layout::Index(ColumnOf(lane, i), chunk); });
      // A row of B as columns of A B.
      ExpectNoBankConflict([&](int lane) {
        return Layout::Index(chunk * kChunk + i, LaneCol(lane));
      });
    }
  }
}

TEST(Fp32Tile, LoadsHaveNoBankConflict) {
  ExpectLoadsHaveNoBankConflict<32, 8>();
  ExpectLoadsHaveNoBankConflict<64, 8>();
  ExpectLoadsHaveNoBankConflict<96, 4>();
  ExpectLoadsHaveNoBankConflict<128, 4>();
}

TEST(Fp32TileSizes, FitAMultiprocessorOfCapability80) {
  ForwardParams p;
  for (p.d = 8; p.d <= 256; p.d += 8) {
    for (p.soft_cap = 0; p.soft_cap <= 50; p.soft_cap += 50) {
      for (const bool needs_grad : {false, true}) {
        EXPECT_LE(SharedBytes(p, needs_grad), 163 * 1024) << p.d;
      }
      WithKernels(p, [&](auto dim, auto soft_cap) {
        EXPECT_EQ(soft_cap(), p.soft_cap != 0);
        EXPECT_GE(dim(), p.d);
        EXPECT_LT(dim() - p.d, soft_cap() ? 128 : 64);
      });
    }
  }
}

// Compute capability 9.0 has 228 KiB, of which the system takes one per CUDA
// block.
TEST(Fp32TileSizes, SharedMemoryFitsAsManyCudaBlocksAsRegisters) {
  for (int d = 32; d <= 256; d += 32) {
    flash::WithHeadDim(HeadDims(), d, [&](auto dim) {
      using Forward = LargeForwardTiles<dim()>;
      using Backward = LargeBackwardTiles<dim()>;
      EXPECT_LE(Forward::kBlocks * (Forward::kSharedBytes + 1024), 228 * 1024);
      EXPECT_LE(Backward::kBlocks * (Backward::kSharedBytes + 1024),
                228 * 1024);
      EXPECT_LE(Backward::kStreamed, kThreads);
    });
  }
}

// Otherwise SharedBytes() would be too small for them.
TEST(Fp32TileSizes, SmallTilesAreNotLarger) {
  for (int d = 32; d <= 256; d += 32) {
    flash::WithHeadDim(HeadDims(), d, [&](auto dim) {
      EXPECT_LE(SmallForwardTiles<dim()>::kSharedBytes,
                LargeForwardTiles<dim()>::kSharedBytes);
      EXPECT_LE(SmallBackwardTiles<dim()>::kSharedBytes,
                LargeBackwardTiles<dim()>::kSharedBytes);
    });
  }
}

TEST(Fp32Workspace, HoldsStatistics) {
  ForwardParams p;
  p.b = 2;
  p.h = 3;
  p.s = 65;
  p.d = 64;
  EXPECT_EQ(BackwardWorkspaceBytes(p), 2 * 3 * 65 * 8);
}

}  // namespace
}  // namespace fp32
}  // namespace flash
}  // namespace tessera
