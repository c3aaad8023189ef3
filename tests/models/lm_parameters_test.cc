// LmParameters(): which parameters a model has.

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_shape.h"
#include "models/transformer_lm.h"
#include "tests/models/sized_model.h"

namespace tessera {
namespace {

int64_t Count(const ModelShape& shape) {
  return CountParameters(LmParameters(shape, {}).value());
}

TEST(LmParametersTest, CountsEqualTheTableToTheLastParameter) {
  EXPECT_EQ(Count(Sized(768, 3072, 12, 12)), 128'625'408);
  EXPECT_EQ(Count(Sized(1024, 4096, 24, 16)), 423'183'360);
  EXPECT_EQ(Count(Sized(1280, 5120, 36, 20)), 969'411'840);
  EXPECT_EQ(Count(Sized(1600, 6400, 48, 25)), 1'998'235'200);
  EXPECT_EQ(Count(Sized(2560, 10240, 32, 32)), 3'406'809'600);
}

TEST(LmParametersTest, TiedHeadCountsOnceAndGroupedHeadsShrink) {
  ModelShape shape = Sized(768, 3072, 12, 12);
  shape.tied_head = true;
  EXPECT_EQ(Count(shape), 128'625'408 - 10000 * 768);
  shape.kv_heads = 4;
  EXPECT_EQ(Count(shape), 128'625'408 - 10000 * 768 - 12 * 2 * 8 * 64 * 768);
}

TEST(LmParametersTest, QkNormHasTwoGainsInALayer) {
  ModelShape shape = Sized(768, 3072, 12, 12);
  shape.kv_heads = 4;
  const int64_t without = Count(shape);
  shape.qk_norm = QkNormForm::kHead;
  EXPECT_EQ(Count(shape), without + 12 * 2 * 64);
  shape.qk_norm = QkNormForm::kProjection;
  EXPECT_EQ(Count(shape), without + 12 * (12 + 4) * 64);
  const auto blocks = LmParameters(shape, {"layers.*_norm.weight"}).value();
  std::vector<std::string> frozen;
  for (const ParameterBlockSpec& block : blocks) {
    if (!block.trainable) frozen.push_back(block.name);
    EXPECT_EQ(block.trainable,
              block.members[0].name.find("_norm.weight") == std::string::npos)
        << block.name;
  }
  EXPECT_EQ(frozen.size(), 2 * 12);
  EXPECT_EQ(frozen[0], "layers.0.attn.q_norm.weight");
  EXPECT_EQ(frozen[1], "layers.0.attn.k_norm.weight");
}

TEST(LmParametersTest, HeadDimIsIndependentOfTheWidth) {
  ModelShape shape = Sized(768, 3072, 12, 12);
  shape.own_head_dim = 96;
  EXPECT_EQ(Count(shape), 128'625'408 + 12 * 4 * 12 * 32 * 768);
}

TEST(LmParametersTest, FrozenPatternsMustMatchWholeBlocks) {
  const auto status = [](const std::vector<std::string>& frozen) {
    return LmParameters(Sized(48, 80, 3, 6), frozen).status();
  };
  const absl::Status part = status({"*.q_proj.*", "*.v_proj.*"});
  EXPECT_TRUE(absl::IsInvalidArgument(part));
  EXPECT_THAT(std::string(part.message()),
              testing::HasSubstr("only part of layers.0.attn.qkv"));
  EXPECT_TRUE(status({"*.q_proj.*", "*.k_proj.*", "*.v_proj.*"}).ok());
  const absl::Status nothing = status({"encoder.*"});
  EXPECT_TRUE(absl::IsNotFound(nothing));
  EXPECT_THAT(std::string(nothing.message()),
              testing::HasSubstr("matches no parameter"));
}

}  // namespace
}  // namespace tessera
