#include "bench/measure/attention_case.h"

#include "absl/strings/string_view.h"
#include "framework/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

TEST(AttentionCaseTest, MasksHaveTheirNames) {
  for (const absl::string_view name :
       {"causal", "full", "window_1", "window_512", "documents_512"}) {
    AttentionCase shape;
    ASSERT_TRUE(ParseMask(name, &shape).ok()) << name;
    EXPECT_EQ(MaskName(shape), name);
    EXPECT_EQ(ProblemOf(shape, CpuDevice()).documents, name == "documents_512");
  }
  AttentionCase shape;
  for (const absl::string_view name :
       {"", "some", "window_", "window_0", "documents_-1", "documents_x"}) {
    EXPECT_EQ(ParseMask(name, &shape).code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(AttentionCaseTest, AMaskReplacesTheOneBefore) {
  AttentionCase shape;
  for (const absl::string_view name : {"documents_8", "window_8", "full"}) {
    ASSERT_TRUE(ParseMask(name, &shape).ok());
    EXPECT_EQ(MaskName(shape), name);
  }
}

// //tests/bench/peers:masks_test expects the same lengths.
TEST(AttentionCaseTest, DocumentLengthsAreThoseOfThePeers) {
  EXPECT_THAT(DocumentLengths(512, 4096, 0),
              ElementsAre(761, 88, 530, 191, 470, 676, 729, 651));
  EXPECT_THAT(DocumentLengths(512, 4096, 1),
              ElementsAre(21, 86, 826, 228, 613, 684, 892, 499, 247));
  EXPECT_THAT(DocumentLengths(3, 16, 1), ElementsAre(1, 5, 1, 1, 2, 4, 1, 1));
  EXPECT_THAT(DocumentLengths(1, 3, 0), ElementsAre(1, 1, 1));
}

TEST(AttentionCaseTest, TflopsCountVisiblePairs) {
  AttentionCase shape = {.batch = 2, .heads = 3, .length = 16, .head_dim = 8};
  const auto pairs = [&](absl::string_view mask) {
    EXPECT_TRUE(ParseMask(mask, &shape).ok());
    return AttentionTflops(shape, AttentionPass::kForward, 1e-9) / (4 * 3 * 8);
  };
  EXPECT_DOUBLE_EQ(pairs("full"), 2 * 16 * 16);
  EXPECT_DOUBLE_EQ(pairs("causal"), 16 * 16);
  EXPECT_DOUBLE_EQ(pairs("window_2"), 2 * (1 + 15 * 2));
  EXPECT_DOUBLE_EQ(pairs("documents_1"), 2 * 16);
  // 1 1 5 5 3 1 and 1 5 1 1 2 4 1 1
  EXPECT_DOUBLE_EQ(pairs("documents_3"), (1 + 1 + 15 + 15 + 6 + 1) +
                                             (1 + 15 + 1 + 1 + 3 + 10 + 1 + 1));
}

}  // namespace
}  // namespace tessera
