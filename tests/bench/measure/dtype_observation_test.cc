#include "bench/measure/dtype_observation.h"

#include <memory>
#include <string>

#include "framework/cuda/device.h"
#include "framework/precision/precision_policy.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json ToyModel(const PrecisionPolicy& precision) {
  const auto dtypes =
      ToyModelDtypes({.device = CpuDevice(), .precision = precision});
  EXPECT_TRUE(dtypes.ok()) << dtypes.status();
  return dtypes.value_or(Json());
}

Json ToyIn(const std::string& compute, const std::string& gradients) {
  return {{"parameters", "FP32"}, {"fc1", compute},
          {"relu", compute},      {"norm_statistics", "FP32"},
          {"norm", compute},      {"logits", compute},
          {"loss", "FP32"},       {"gradients", gradients}};
}

TEST(ToyModelDtypesTest, FollowThePolicy) {
  EXPECT_EQ(ToyModel(PrecisionPolicy(PrecisionMode::kFp32)),
            ToyIn("FP32", "FP32"));
  EXPECT_EQ(ToyModel(PrecisionPolicy(PrecisionMode::kFp16)),
            ToyIn("FP16", "FP16"));
  EXPECT_EQ(ToyModel(PrecisionPolicy(PrecisionMode::kBf16)),
            ToyIn("BF16", "BF16"));
  EXPECT_EQ(
      ToyModel(PrecisionPolicy(PrecisionMode::kFp16, /*fp32_gradients=*/true)),
      ToyIn("FP16", "FP32"));
}

TEST(ToyModelDtypesTest, EachIsThatOfItsOwnClass) {
  const PrecisionPolicy bf16(PrecisionMode::kBf16);
  EXPECT_EQ(ToyModel(bf16.With(OpClass::kLogits, at::kFloat))["logits"],
            "FP32");
  EXPECT_EQ(ToyModel(bf16.With(OpClass::kActivation, at::kFloat))["norm"],
            "FP32");
  EXPECT_EQ(ToyModel(bf16.With(OpClass::kNormStatistics,
                               at::kDouble))["norm_statistics"],
            "FP64");
  EXPECT_EQ(ToyModel(bf16.With(OpClass::kLoss, at::kDouble))["loss"], "FP64");
}

TEST(LanguageModelDtypesTest, AreThoseOfTheSession) {
  const std::unique_ptr<Session> session =
      Toy("configs/tiny_cpu.pbtxt",
          {"precision.mode=BF16", "attention.backend=FLASH_TILED",
           "execution.fuse.head_loss=false"});
  const Json expected = {{"parameters", "FP32"},
                         {"residual", "FP32"},
                         {"norm_statistics", "FP32"},
                         {"norm", "BF16"},
                         {"matmul", "BF16"},
                         {"weights", "BF16"},
                         {"attention", "BF16"},
                         {"softmax", "FP32"},
                         {"activation", "BF16"},
                         {"logits", "BF16"},
                         {"loss", "FP32"},
                         {"gradients", "BF16"},
                         {"reduction", "FP32"},
                         {"optimizer_state", "FP32"}};
  EXPECT_EQ(LanguageModelDtypes(*session), expected);
  // It keeps weights where others keep softmax's sums.
  const std::unique_ptr<Session> naive =
      Toy("configs/tiny_cpu.pbtxt", {"attention.backend=NAIVE"});
  EXPECT_FALSE(LanguageModelDtypes(*naive).contains("softmax"));
}

}  // namespace
}  // namespace tessera
