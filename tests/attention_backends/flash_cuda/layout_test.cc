// The index arithmetic of the portable kernels, without a GPU: compares what
// each lane reads with the layouts of mma.m16n8k16 and m16n8k8 in the PTX ISA.

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

template <typename T_, int kCols_>
struct Columns {
  using T = T_;
  static constexpr int kCols = kCols_;
};

template <typename Columns>
class TileTest : public ::testing::Test {
 protected:
  using T = typename Columns::T;
  static constexpr int kCols = Columns::kCols;
  using Layout = TileLayout<T, kCols>;

  // The element of the tile at an address in shared memory.
  static Element ElementAt(uint32_t address) {
    for (int row = 0; row < kRows; ++row) {
      for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
        const int begin = Layout::Offset(row, chunk);
        if (begin <= address && address < begin + kChunkBytes) {
          const int offset = static_cast<int>(address - begin);
          return {row,
                  chunk * kChunk<T> + offset / static_cast<int>(sizeof(T))};
        }
      }
    }
    return {-1, -1};
  }

  // Register i of `lane` after ldmatrix.x4, or its lower half: matrix i
  // consists of the rows whose addresses lanes 8 i to 8 i + 7 pass.
  template <typename Address>
  static Element Loaded(int lane, int i, bool transposed,
                        const Address& address) {
    const int row = transposed ? lane % 4 * 2 : lane / 4;
    const int byte = transposed ? lane / 4 * 2 : lane % 4 * 4;
    return ElementAt(address(8 * i + row) + byte);
  }

  static constexpr int kRows = 48;
};

using AllColumns = ::testing::Types<
    Columns<uint16_t, 32>, Columns<uint16_t, 64>, Columns<uint16_t, 80>,
    Columns<uint16_t, 96>, Columns<uint16_t, 128>, Columns<uint16_t, 192>,
    Columns<uint16_t, 256>, Columns<float, 32>, Columns<float, 64>,
    Columns<float, 80>, Columns<float, 96>, Columns<float, 128>>;
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
  using T = typename TestFixture::T;
  constexpr int kCols = TestFixture::kCols;
  constexpr int kRow = 16, kCol = kCols - 16, kHalf = kChunk<T>;
  for (int lane = 0; lane < 32; ++lane) {
    const auto rows_first = [&](int of) -> uint32_t {
      return LaneAddress<T, kCols>(0, RowsFirst(of)).At(kRow, kCol / kHalf);
    };
    const auto chunks_first = [&](int of) -> uint32_t {
      return LaneAddress<T, kCols>(0, ChunksFirst(of)).At(kRow, kCol / kHalf);
    };
    for (int i = 0; i < 4; ++i) {
      const int group = lane / 4, first = lane % 4 * kHalf / 4;
      // A: register i holds row group + 8 (i % 2) and half i / 2 of the
      // columns.
      const Element a = {group + i % 2 * 8, first + i / 2 * kHalf};
      EXPECT_EQ(this->Loaded(lane, i, false, rows_first),
                (Element{kRow + a.row, kCol + a.col}));
      // B of product i / 2: n = group, and half i % 2 of k.
      const int k = first + i % 2 * kHalf, n = group + i / 2 * 8;
      EXPECT_EQ(this->Loaded(lane, i, false, chunks_first),
                (Element{kRow + n, kCol + k}));
      if (sizeof(T) == 4) continue;  // ldmatrix transposes 16-bit elements
      EXPECT_EQ(this->Loaded(lane, i, true, chunks_first),
                (Element{kRow + a.col, kCol + a.row}));
      EXPECT_EQ(this->Loaded(lane, i, true, rows_first),
                (Element{kRow + k, kCol + n}));
    }
  }
}

// The warps of a row take pairs of chunks in turn; together they read each pair
// once.
TYPED_TEST(TileTest, ColumnWarpsShareThePairs) {
  using T = typename TestFixture::T;
  constexpr int kCols = TestFixture::kCols, kPair = 16 / kChunk<T>;
  using Layout = typename TestFixture::Layout;
  for (const int warps : {1, 2, 4}) {
    if (kCols / 16 % warps != 0) continue;
    std::set<int> chunks;
    for (int warp = 0; warp < warps; ++warp) {
      for (int lane = 0; lane < 32; ++lane) {
        const LaneAddress<T, kCols> address(0, RowsFirst(lane), kPair * warp);
        for (int pair = 0; pair < kCols / 16 / warps; ++pair) {
          const Element at =
              this->ElementAt(address.At(32, kPair * warps * pair));
          EXPECT_EQ(at.row, 32 + lane % 16);
          EXPECT_EQ(at.col / kChunk<T>,
                    kPair * (warps * pair + warp) + RowsFirst(lane).chunk);
          if (lane % 16 == 0) {
            EXPECT_TRUE(chunks.insert(at.col / kChunk<T>).second);
          }
        }
      }
    }
    // A lane reads two chunks of a pair.
    EXPECT_EQ(chunks.size(), Layout::kChunks * 2 / kPair);
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

// Tiles of floats with more than 96 columns need the memory of capability 9.0.
TEST(TileSizes, FitAMultiprocessor) {
  for (const FloatType type : {FloatType::kBFloat16, FloatType::kFloat}) {
    const bool tf32 = type == FloatType::kFloat;
    for (int d = 8; d <= (tf32 ? kLargestTf32HeadDim : 256); d += 8) {
      ForwardParams p;
      p.type = type;
      p.d = d;
      EXPECT_LE(SharedBytes(p, false), 163 * 1024) << d;
      EXPECT_LE(SharedBytes(p, true), (tf32 && d > 96 ? 227 : 163) * 1024) << d;
      flash::WithHeadDim(HeadDims(), d, [&](auto dim) {
        EXPECT_GE(dim(), d);
        EXPECT_LT(dim() - d, 64);
        WithTiles(p, [&](auto, auto backward) {
          using Tiles = decltype(backward);
          EXPECT_GE(Tiles::kDqElements, Tiles::kStreamed * dim());
          EXPECT_GE(Tiles::kThreads, Tiles::kStreamed);
          EXPECT_EQ(Tiles::kStreamed % Tiles::kSlice, 0);
        });
      });
    }
  }
}

// Kernels with a soft cap have fewer head dims.
TEST(TileSizes, FitAMultiprocessorWithASoftCap) {
  for (const FloatType type : {FloatType::kBFloat16, FloatType::kFloat}) {
    const bool tf32 = type == FloatType::kFloat;
    for (int d = 8; d <= (tf32 ? kLargestTf32HeadDim : 256); d += 8) {
      ForwardParams p;
      p.type = type;
      p.d = d;
      p.soft_cap = 50;
      EXPECT_LE(SharedBytes(p, false), 163 * 1024) << d;
      EXPECT_LE(SharedBytes(p, true), (tf32 && d > 64 ? 227 : 163) * 1024) << d;
      WithKernels(p, [&](auto dim, auto soft_cap) {
        EXPECT_TRUE(soft_cap());
        EXPECT_EQ(dim(), d <= 64 ? 64 : d <= 128 ? 128 : 256);
        WithTiles(p, [&](auto, auto backward) {
          EXPECT_GE(decltype(backward)::kDqElements,
                    decltype(backward)::kStreamed * dim());
        });
      });
    }
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
