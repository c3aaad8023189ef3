#include <ATen/ATen.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/precision/loss_scaler.h"
#include "framework/precision/precision_config.h"
#include "framework/precision/precision_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

PrecisionConfig Config(const std::string& text) {
  PrecisionConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

PrecisionPolicy Policy(const std::string& text, int micro_batches = 1) {
  auto policy =
      CreatePrecisionPolicy(Config(text), micro_batches, /*cuda=*/true);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

TEST(PrecisionPolicy, Fp32AndTf32StoreEverythingInFp32) {
  for (const char* text : {"mode: FP32", "mode: TF32"}) {
    for (int i = 0; i < kNumOpClasses; ++i) {
      EXPECT_EQ(Policy(text)[static_cast<OpClass>(i)], at::kFloat) << text;
    }
  }
  EXPECT_FALSE(Policy("mode: FP32").allows_tf32());
  EXPECT_TRUE(Policy("mode: TF32").allows_tf32());
}

TEST(PrecisionPolicy, AutocastModesLowerProductsOnly) {
  for (const auto& [text, compute] :
       {std::pair("mode: BF16", at::kBFloat16), {"mode: FP16", at::kHalf}}) {
    const PrecisionPolicy policy = Policy(text);
    for (const OpClass op :
         {OpClass::kWeights, OpClass::kMatmul, OpClass::kAttention,
          OpClass::kActivation, OpClass::kLogits, OpClass::kGradient}) {
      EXPECT_EQ(policy[op], compute) << text << " " << OpClassName(op);
    }
    for (const OpClass op :
         {OpClass::kMasterWeights, OpClass::kSoftmax, OpClass::kNormStatistics,
          OpClass::kResidual, OpClass::kLoss, OpClass::kReduction,
          OpClass::kOptimizerState}) {
      EXPECT_EQ(policy[op], at::kFloat) << text << " " << OpClassName(op);
    }
  }
  EXPECT_TRUE(Policy("mode: FP16").scales_loss());
  EXPECT_FALSE(Policy("mode: BF16").scales_loss());
}

TEST(PrecisionPolicy, PureBf16KeepsOnlyReductionsInFp32) {
  const PrecisionPolicy policy = Policy("mode: BF16_PURE");
  for (const OpClass op : {OpClass::kMasterWeights, OpClass::kResidual,
                           OpClass::kGradient, OpClass::kOptimizerState}) {
    EXPECT_EQ(policy[op], at::kBFloat16) << OpClassName(op);
  }
  for (const OpClass op : {OpClass::kSoftmax, OpClass::kNormStatistics,
                           OpClass::kLoss, OpClass::kReduction}) {
    EXPECT_EQ(policy[op], at::kFloat) << OpClassName(op);
  }
}

TEST(PrecisionPolicy, AccumulatedGradientsAreFp32) {
  for (const char* text : {"mode: BF16", "mode: FP16", "mode: BF16_PURE"}) {
    EXPECT_EQ(Policy(text, 2)[OpClass::kGradient], at::kFloat) << text;
    EXPECT_EQ(
        Policy(std::string(text) + " fp32_gradients: true")[OpClass::kGradient],
        at::kFloat)
        << text;
  }
}

TEST(PrecisionPolicy, RejectsModesThatNeedAGpu) {
  for (const char* text : {"mode: TF32", "mode: FP16"}) {
    const auto policy = CreatePrecisionPolicy(Config(text), 1, false);
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr("on a CPU"));
  }
  for (const char* text : {"mode: FP32", "mode: BF16", "mode: BF16_PURE"}) {
    EXPECT_TRUE(CreatePrecisionPolicy(Config(text), 1, false).ok()) << text;
  }
  EXPECT_FALSE(
      CreatePrecisionPolicy(Config("mode: UNSPECIFIED"), 1, true).ok());
  EXPECT_FALSE(CreatePrecisionPolicy(Config("mode: FP32"), 0, true).ok());
}

TEST(PrecisionPolicy, SetsLibTorchsSwitchesBothWays) {
  Policy("mode: TF32").ApplyToLibTorch();
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  Policy("mode: BF16").ApplyToLibTorch();
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
}

TEST(PrecisionTable, MatchesTheDocumentation) {
  const auto path = FindRuntimeFile("docs/precision.md");
  ASSERT_TRUE(path.ok()) << path.status();
  const auto page = ReadFile(*path);
  ASSERT_TRUE(page.ok()) << page.status();
  std::string table;
  for (const absl::string_view line : absl::StrSplit(*page, '\n')) {
    if (absl::StartsWith(line, "|")) absl::StrAppend(&table, line, "\n");
  }
  EXPECT_EQ(table, PrecisionTableMarkdown())
      << "docs/precision.md is out of date: replace its table by the output of "
         "`bazel run //framework/precision:print_precision_table`";
}

struct BadConfig {
  const char* text;
  const char* path;
};

class PrecisionConfigValidation : public ::testing::TestWithParam<BadConfig> {};

TEST_P(PrecisionConfigValidation, NamesTheBrokenRule) {
  std::vector<Violation> found;
  Validate(Config(GetParam().text), Violations(&found));
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].path, GetParam().path);
}

INSTANTIATE_TEST_SUITE_P(
    , PrecisionConfigValidation,
    ::testing::Values(BadConfig{"mode: UNSPECIFIED", "mode"},
                      BadConfig{"loss_scaler { initial_scale: 0 }",
                                "loss_scaler.initial_scale"},
                      BadConfig{"loss_scaler { initial_scale: 5.9e-8 }",
                                "loss_scaler.initial_scale"},
                      BadConfig{"loss_scaler { initial_scale: 1e39 }",
                                "loss_scaler.initial_scale"},
                      BadConfig{"loss_scaler { growth_factor: 1 }",
                                "loss_scaler.growth_factor"},
                      BadConfig{"loss_scaler { backoff_factor: 1 }",
                                "loss_scaler.backoff_factor"},
                      BadConfig{"loss_scaler { growth_interval_steps: 0 }",
                                "loss_scaler.growth_interval_steps"}));

TEST(PrecisionConfigDefaults, AreValid) {
  std::vector<Violation> found;
  Validate(PrecisionConfig(), Violations(&found));
  EXPECT_TRUE(found.empty());
}

LossScalerOptions EveryThreeSteps() {
  LossScalerOptions options;
  options.initial_scale = 1024;
  options.growth_interval_steps = 3;
  return options;
}

void Update(LossScaler* scaler, bool overflow) {
  const at::Device device = scaler->scale().device();
  scaler->Update(at::full({1}, overflow, at::device(device).dtype(at::kBool)));
}

void ExpectScale(const LossScaler& scaler, double scale) {
  EXPECT_EQ(scaler.scale().item<float>(), static_cast<float>(scale));
  EXPECT_EQ(scaler.inverse_scale().item<float>(),
            static_cast<float>(1 / scale));
}

// torch.amp.GradScaler gives the same for these overflows.
void ExpectGrowthAndBackoff(at::Device device) {
  LossScaler scaler(EveryThreeSteps(), device);
  ExpectScale(scaler, 1024);
  const struct {
    bool overflow;
    double scale;
  } steps[] = {{false, 1024}, {false, 1024}, {false, 2048}, {false, 2048},
               {false, 2048}, {true, 1024},  {true, 512},   {false, 512},
               {false, 512},  {false, 1024}};
  for (const auto& step : steps) {
    Update(&scaler, step.overflow);
    ExpectScale(scaler, step.scale);
  }
  EXPECT_EQ(scaler.skipped_steps().item<int64_t>(), 2);
}

TEST(LossScaler, GrowsAfterAnIntervalAndBacksOffImmediately) {
  ExpectGrowthAndBackoff(at::kCPU);
}

TEST(LossScaler, AnOverflowRestartsTheInterval) {
  LossScaler scaler(EveryThreeSteps(), at::kCPU);
  for (int i = 0; i < 10; ++i) {
    Update(&scaler, false);
    Update(&scaler, false);
    Update(&scaler, true);
  }
  ExpectScale(scaler, 1);
}

TEST(LossScaler, StaysFiniteInBothDirections) {
  LossScalerOptions options = EveryThreeSteps();
  options.growth_interval_steps = 1;
  LossScaler scaler(options, at::kCPU);
  for (int i = 0; i < 200; ++i) Update(&scaler, true);
  ExpectScale(scaler, LossScaler::kMinScale);
  for (int i = 0; i < 300; ++i) Update(&scaler, false);
  EXPECT_TRUE(std::isfinite(scaler.scale().item<float>()));
  EXPECT_GT(scaler.inverse_scale().item<float>(), 0);
}

TEST(LossScaler, ContinuesFromAnExportedState) {
  LossScaler straight(EveryThreeSteps(), at::kCPU);
  Update(&straight, true);
  Update(&straight, false);
  Update(&straight, false);
  LossScaler resumed(EveryThreeSteps(), at::kCPU);
  resumed.ImportState(straight.ExportState());
  ExpectScale(resumed, 512);
  for (LossScaler* scaler : {&straight, &resumed}) Update(scaler, false);
  ExpectScale(straight, 1024);
  ExpectScale(resumed, 1024);
  EXPECT_EQ(resumed.skipped_steps().item<int64_t>(), 1);
}

TEST(LossScaler, UpdatesInPlace) {
  LossScaler scaler(EveryThreeSteps(), at::kCPU);
  const void* scale = scaler.scale().const_data_ptr();
  const void* inverse = scaler.inverse_scale().const_data_ptr();
  Update(&scaler, true);
  scaler.ImportState({8, 0, 0});
  EXPECT_EQ(scaler.scale().const_data_ptr(), scale);
  EXPECT_EQ(scaler.inverse_scale().const_data_ptr(), inverse);
}

TEST(GpuLossScaler, GrowsAfterAnIntervalAndBacksOffImmediately) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectGrowthAndBackoff(at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace tessera
