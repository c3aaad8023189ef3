#include "framework/params/matrix_sections.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/params/sharding.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// No section ends early because of its size.
constexpr int64_t kUnlimited = int64_t{1} << 60;

int64_t Total(const std::vector<MatrixBlock>& blocks) {
  int64_t total = 0;
  for (const MatrixBlock& block : blocks) total += block.numel();
  return total;
}

// Layers of a transformer of width 128: queries, keys and values, their output,
// two matrices of the gated feed-forward, and the third.
std::vector<MatrixBlock> Layers(int layers, int64_t d_ff, int64_t kv = 128) {
  constexpr int64_t kWidth = 128;
  std::vector<MatrixBlock> blocks;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string unit = absl::StrCat("block_", layer);
    const int64_t wide = kWidth * d_ff;
    blocks.push_back({{kWidth * kWidth, kWidth * kv, kWidth * kv}, unit});
    blocks.push_back({{kWidth * kWidth}, unit});
    blocks.push_back({{wide, wide}, unit});
    blocks.push_back({{wide}, unit});
  }
  return blocks;
}

// Expects blocks at aligned places, which do not overlap, and whole matrices.
void ExpectWholeMatrices(const std::vector<MatrixBlock>& blocks,
                         const std::vector<MatrixSection>& sections,
                         int shards) {
  size_t b = 0;
  for (const MatrixSection& section : sections) {
    EXPECT_EQ(section.part % kBlockAlignment, 0);
    std::vector<std::pair<int64_t, int64_t>> taken = {
        {shards * section.part, shards * section.part}};
    for (const int64_t offset : section.offsets) {
      ASSERT_LT(b, blocks.size());
      EXPECT_EQ(offset % kBlockAlignment, 0);
      taken.emplace_back(offset, offset + blocks[b].numel());
      int64_t begin = offset;
      for (const int64_t numel : blocks[b++].matrices) {
        EXPECT_EQ(section.PartOf(begin), section.PartOf(begin + numel - 1));
        begin += numel;
      }
    }
    std::sort(taken.begin(), taken.end());
    EXPECT_GE(taken.front().first, 0);
    for (size_t i = 1; i < taken.size(); ++i) {
      EXPECT_LE(taken[i - 1].second, taken[i].first);
    }
  }
  EXPECT_EQ(b, blocks.size());
}

// Elements of all sections, padding included, per element of a matrix.
double Room(const std::vector<MatrixBlock>& blocks,
            const std::vector<MatrixSection>& sections, int shards) {
  double room = 0;
  for (const MatrixSection& section : sections) {
    room += static_cast<double>(shards * section.part);
  }
  return room / static_cast<double>(Total(blocks));
}

TEST(MatrixSectionsTest, TwoAndFourRanksDivideALayerEvenly) {
  const std::vector<MatrixBlock> blocks = Layers(3, /*d_ff=*/512);
  for (const int shards : {2, 4}) {
    const auto sections = DivideMatrices(blocks, shards, kUnlimited);
    ExpectWholeMatrices(blocks, sections, shards);
    EXPECT_EQ(sections.size(), 3u);
    EXPECT_EQ(Room(blocks, sections, shards), 1);
  }
}

// A quarter of a layer is the largest matrix, so eight ranks need two layers.
TEST(MatrixSectionsTest, ASectionTakesInLayersUntilItIsBalanced) {
  const std::vector<MatrixBlock> blocks = Layers(6, /*d_ff=*/512);
  const auto sections = DivideMatrices(blocks, 8, kUnlimited);
  ExpectWholeMatrices(blocks, sections, 8);
  EXPECT_EQ(sections.size(), 3u);
  EXPECT_EQ(Room(blocks, sections, 8), 1);
}

// Eight ranks cannot divide one layer evenly, nor three. With one, a section of
// its own, padding would be 1/7.
TEST(MatrixSectionsTest, TheLastLayersJoinTheSectionsBefore) {
  const std::vector<MatrixBlock> blocks = Layers(7, /*d_ff=*/512);
  const auto sections = DivideMatrices(blocks, 8, kUnlimited);
  ExpectWholeMatrices(blocks, sections, 8);
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_EQ(sections[0].offsets.size(), 8u);
  EXPECT_LE(Room(blocks, sections, 8), 1.08);
}

// The work of the rank with the most to do, compared with the mean.
double LargestShare(const std::vector<MatrixBlock>& blocks,
                    const std::vector<MatrixSection>& sections, int shards) {
  std::vector<double> work(shards, 0);
  auto block = blocks.begin();
  for (const MatrixSection& section : sections) {
    for (int64_t begin : section.offsets) {
      for (size_t m = 0; m < block->matrices.size(); ++m) {
        work[section.PartOf(begin)] += block->work[m];
        begin += block->matrices[m];
      }
      ++block;
    }
  }
  return shards * *absl::c_max_element(work) / absl::c_accumulate(work, 0.0);
}

// In each layer the rank with the square matrices has twice as much to do as
// one with a long one.
TEST(MatrixSectionsTest, TheRankWithTheMostToDoAlternates) {
  std::vector<MatrixBlock> blocks = Layers(16, /*d_ff=*/512);
  for (MatrixBlock& block : blocks) {
    for (const int64_t numel : block.matrices) {
      block.work.push_back(static_cast<double>(numel) *
                           (numel == 128 * 128 ? 2 : 1));
    }
  }
  for (const int shards : {2, 4, 8}) {
    SCOPED_TRACE(shards);
    const auto sections = DivideMatrices(blocks, shards, kUnlimited);
    ExpectWholeMatrices(blocks, sections, shards);
    EXPECT_EQ(Room(blocks, sections, shards), 1);
    EXPECT_LE(LargestShare(blocks, sections, shards), 1.01);
  }
}

TEST(MatrixSectionsTest, ALargeSectionEndsInsideALayer) {
  // The two matrices of the first block lie on a rank each.
  const auto sections = DivideMatrices(
      {{{{512, 512}, "block_0"}, {{512}, "block_0"}, {{512}, "block_0"}}}, 2,
      /*section_elements=*/1024);
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_EQ(sections[0].part, 512);
  EXPECT_EQ(sections[0].offsets, std::vector<int64_t>{0});
}

// With more ranks than matrices, each part is as large as the largest.
TEST(MatrixSectionsTest, TheLargestMatrixBoundsTheParts) {
  const auto sections =
      DivideMatrices({{{{1000}, "a"}, {{128}, "b"}}}, 8, kUnlimited);
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_EQ(sections[0].part, 1024);
}

TEST(MatrixSectionsTest, ModelsOfManyShapesHaveLittlePadding) {
  for (const int64_t d_ff : {344, 384, 448, 512}) {
    for (const int64_t kv : {32, 128}) {
      for (const int shards : {2, 3, 4, 7, 8, 16}) {
        SCOPED_TRACE(absl::StrCat("d_ff ", d_ff, ", kv ", kv, ", ", shards));
        const std::vector<MatrixBlock> blocks = Layers(32, d_ff, kv);
        const auto sections = DivideMatrices(blocks, shards, kUnlimited);
        ExpectWholeMatrices(blocks, sections, shards);
        EXPECT_LE(Room(blocks, sections, shards), 17.0 / 16);
        EXPECT_GE(sections.size(), 2u);
      }
    }
  }
}

// Odd sizes, of which no matrix but the first may begin a part.
TEST(MatrixSectionsTest, RandomBlocksLieWhole) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random() % most);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<MatrixBlock> blocks(draw(12));
    for (MatrixBlock& block : blocks) {
      block.unit = absl::StrCat(draw(3));
      const int64_t size = draw(2) == 1 ? 128 * draw(9) : draw(999);
      block.matrices.assign(draw(3), size);
      for (size_t m = 0; m < block.matrices.size() && round % 2 == 0; ++m) {
        block.work.push_back(static_cast<double>(draw(9)));
      }
    }
    const int shards = 1 + static_cast<int>(draw(7));
    const auto sections = DivideMatrices(blocks, shards, draw(5000));
    ExpectWholeMatrices(blocks, sections, shards);
  }
}

}  // namespace
}  // namespace tessera
