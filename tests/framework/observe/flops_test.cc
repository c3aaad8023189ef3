#include "framework/observe/flops.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

// The operations of every matrix product, counted one by one: 2 m n k forward,
// twice that backward.
double Counted(int64_t vocab, int64_t d, int64_t ff, int64_t layers,
               int64_t context) {
  const double projections = 4.0 * d * d;  // Q, K, V, O
  const double ffn = 3.0 * d * ff;
  const double head = 1.0 * vocab * d;
  // Scores and values; the mean query of a causal sequence sees half the keys.
  const double attention = 2.0 * d * (context / 2.0);
  return 3 * 2 * (layers * (projections + ffn + attention) + head);
}

TEST(FlopsTest, AgreesWithCountingTheProducts) {
  constexpr int64_t kVocab = 1000, kD = 64, kFf = 256, kLayers = 3, kT = 128;
  constexpr int64_t kBlocks = kLayers * (4 * kD * kD + 3 * kD * kFf);
  const FlopsShape untied = {.parameters = 2 * kVocab * kD + kBlocks,
                             .embedding_parameters = kVocab * kD,
                             .layers = kLayers,
                             .attention_width = kD,
                             .context = kT};
  EXPECT_EQ(TrainingFlopsPerToken(untied),
            Counted(kVocab, kD, kFf, kLayers, kT));
  FlopsShape tied = untied;
  tied.parameters -= kVocab * kD;
  tied.tied_head = true;
  EXPECT_EQ(TrainingFlopsPerToken(tied), TrainingFlopsPerToken(untied));
}

TEST(FlopsTest, DoesNotOverflow) {
  EXPECT_EQ(TrainingFlopsPerToken({.parameters = int64_t{1} << 61,
                                   .layers = int64_t{1} << 20,
                                   .attention_width = int64_t{1} << 20,
                                   .context = int64_t{1} << 30}),
            6.0 * (0x1p61 + 0x1p70));
}

TEST(PeakTflopsTest, KnowsItsTableAndGuessesNothing) {
  EXPECT_EQ(PeakTflops("NVIDIA H200", ProductKind::kHalf), 989);
  EXPECT_EQ(PeakTflops("NVIDIA H200", ProductKind::kTf32), 494);
  EXPECT_EQ(PeakTflops("NVIDIA H200", ProductKind::kFp32), 67);
  EXPECT_EQ(PeakTflops("NVIDIA A100-SXM4-80GB", ProductKind::kHalf), 312);
  for (const char* unknown : {"", "NVIDIA H200 NVL", "NVIDIA H20", "h200",
                              "NVIDIA GeForce RTX 9090", "CPU"}) {
    EXPECT_EQ(PeakTflops(unknown, ProductKind::kHalf), std::nullopt) << unknown;
  }
}

}  // namespace
}  // namespace tessera
