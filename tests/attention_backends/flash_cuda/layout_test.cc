// The index arithmetic of the portable kernels, without a GPU: compares what
// each lane reads with the layouts of mma.m16n8k16 in the PTX ISA.

#include <cstdint>
#include <set>
#include <type_traits>

#include "attention_backends/flash_cuda/portable/fragment_layout.h"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"
#include "attention_backends/flash_cuda/portable/workspace.h"
#include "gtest/gtest.h"

namespace tessera {
namespace flash {
namespace portable {
namespace {

struct Element {
  int row, col;
  bool operator==(const Element&) const = default;
};

template <typename Columns>
class TileTest : public ::testing::Test {
 protected:
  static constexpr int kCols = Columns::value;
  using Layout = TileLayout<kCols>;

  // The element of the tile at an address in shared memory.
  static Element ElementAt(uint32_t address) {
    for (int row = 0; row < kRows; ++row) {
      for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
        const int begin = Layout::Offset(row, chunk);
        if (begin <= address && address < begin + kChunkBytes) {
          return {row, chunk * kChunk + static_cast<int>(address - begin) / 2};
        }
      }
    }
    return {-1, -1};
  }

  // The lower half of register i of `lane` after ldmatrix.x4: matrix i consists
  // of the rows whose addresses lanes 8 i to 8 i + 7 pass.
  template <typename Address>
  static Element Loaded(int lane, int i, bool transposed,
                        const Address& address) {
    const int row = transposed ? lane % 4 * 2 : lane / 4;
    const int col = transposed ? lane / 4 : lane % 4 * 2;
    return ElementAt(address(8 * i + row) + 2 * col);
  }

  static constexpr int kRows = 48;
};

using AllColumns = ::testing::Types<
    std::integral_constant<int, 32>, std::integral_constant<int, 64>,
    std::integral_constant<int, 80>, std::integral_constant<int, 96>,
    std::integral_constant<int, 128>, std::integral_constant<int, 192>,
    std::integral_constant<int, 256>>;
TYPED_TEST_SUITE(TileTest, AllColumns);

TYPED_TEST(TileTest, EveryChunkHasAPlaceOfItsOwn) {
  using Layout = typename TestFixture::Layout;
  std::set<int> places;
  for (int row = 0; row < TestFixture::kRows; ++row) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      const int place = Layout::Offset(row, chunk);
      EXPECT_EQ(place % kChunkBytes, 0);
      EXPECT_EQ(place / Layout::kRowBytes, row);
      EXPECT_TRUE(places.insert(place).second) << row << ", " << chunk;
    }
  }
}

TYPED_TEST(TileTest, EightRowsOfOneChunkShareNoBank) {
  using Layout = typename TestFixture::Layout;
  for (int row = 0; row < TestFixture::kRows; row += 8) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) {
        banks.insert(Layout::Offset(row + i, chunk) / kChunkBytes % 8);
      }
      EXPECT_EQ(banks.size(), 8) << row << ", " << chunk;
    }
  }
}

TYPED_TEST(TileTest, LanesReadTheFragmentsOfMma) {
  constexpr int kCols = TestFixture::kCols;
  constexpr int kRow = 16, kCol = kCols - 16;
  for (int lane = 0; lane < 32; ++lane) {
    const auto rows_first = [&](int of) -> uint32_t {
      return LaneAddress<kCols>(0, RowsFirst(of)).At(kRow, kCol / kChunk);
    };
    const auto chunks_first = [&](int of) -> uint32_t {
      return LaneAddress<kCols>(0, ChunksFirst(of)).At(kRow, kCol / kChunk);
    };
    for (int i = 0; i < 4; ++i) {
      const int group = lane / 4, pair = lane % 4 * 2;
      // A: register i holds row group + 8 (i % 2), columns pair + 8 (i / 2).
      const Element a = {group + i % 2 * 8, pair + i / 2 * 8};
      EXPECT_EQ(this->Loaded(lane, i, false, rows_first),
                (Element{kRow + a.row, kCol + a.col}));
      EXPECT_EQ(this->Loaded(lane, i, true, chunks_first),
                (Element{kRow + a.col, kCol + a.row}));
      // B of product i / 2: k = pair + 8 (i % 2), n = group.
      const int k = pair + i % 2 * 8, n = group + i / 2 * 8;
      EXPECT_EQ(this->Loaded(lane, i, false, chunks_first),
                (Element{kRow + n, kCol + k}));
      EXPECT_EQ(this->Loaded(lane, i, true, rows_first),
                (Element{kRow + k, kCol + n}));
    }
  }
}

// The warps of a row take pairs of chunks in turn; together they read each pair
// once.
TYPED_TEST(TileTest, ColumnWarpsShareThePairs) {
  constexpr int kCols = TestFixture::kCols;
  using Layout = typename TestFixture::Layout;
  for (const int warps : {1, 2, 4}) {
    if (kCols / 16 % warps != 0) continue;
    std::set<int> chunks;
    for (int warp = 0; warp < warps; ++warp) {
      for (int lane = 0; lane < 32; ++lane) {
        const LaneAddress<kCols> address(0, RowsFirst(lane), 2 * warp);
        for (int pair = 0; pair < kCols / 16 / warps; ++pair) {
          const Element at = this->ElementAt(address.At(32, 2 * warps * pair));
          EXPECT_EQ(at.row, 32 + lane % 16);
          EXPECT_EQ(at.col / kChunk,
                    2 * (warps * pair + warp) + RowsFirst(lane).chunk);
          if (lane % 16 == 0) {
            EXPECT_TRUE(chunks.insert(at.col / kChunk).second);
          }
        }
      }
    }
    EXPECT_EQ(chunks.size(), Layout::kChunks);
  }
}

TEST(Accumulator, LanesHoldTheWholeResultOnce) {
  std::set<int> elements;
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      elements.insert(AccumulatorRow(lane, e) * 8 + AccumulatorCol(lane, e));
    }
  }
  EXPECT_EQ(elements.size(), 16 * 8);
  EXPECT_EQ(*elements.rbegin(), 16 * 8 - 1);
}

TEST(TileSizes, FitAMultiprocessorOfCapability80) {
  for (int d = 8; d <= 256; d += 8) {
    for (const bool needs_grad : {false, true}) {
      EXPECT_LE(SharedBytes(d, needs_grad), 163 * 1024) << d;
    }
    WithHeadDim(d, [&](auto dim) {
      using Tiles = BackwardTiles<dim()>;
      EXPECT_GE(dim(), d);
      EXPECT_LT(dim() - d, 64);
      EXPECT_GE(Tiles::kDqElements, Tiles::kStreamed * dim());
      EXPECT_GE(Tiles::kThreads, Tiles::kStreamed);
      EXPECT_EQ(Tiles::kStreamed % Tiles::kSlice, 0);
    });
  }
}

TEST(Workspace, HoldsStatisticsAndSumsOfDq) {
  ForwardParams p;
  p.b = 2;
  p.h = 3;
  p.s = 65;
  p.d = 64;
  // 390 rows of 8 bytes, rounded up to 256; 6 heads of 2 tiles of 64 x 64.
  EXPECT_EQ(LayoutOf(p, /*deterministic=*/true).total(), 3328);
  EXPECT_EQ(LayoutOf(p, /*deterministic=*/false).total(),
            3328 + 12 * 64 * 64 * 4);
}

}  // namespace
}  // namespace portable
}  // namespace flash
}  // namespace tessera
