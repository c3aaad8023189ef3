#include "trainers/config/config_loader.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "framework/base/text_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/config/config_text.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST(LoadRunConfigTest, MinimalConfigTakesTheDefaults) {
  const auto config = LoadRunConfig({WriteConfig(kMinimal)}, {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model().vocab_size(), 10000);
  EXPECT_EQ(config->training().micro_batches(), 1);
  EXPECT_EQ(config->precision().mode(), PrecisionConfig::FP32);
  EXPECT_EQ(config->attention().backend(), AttentionConfig::AUTO);
}

TEST(LoadRunConfigTest, OverridesWinInOrder) {
  const auto config = LoadRunConfig(
      {WriteConfig(kMinimal)}, {"model.num_layers=2", "optimizer.adamw.lr=3e-4",
                                "precision.mode=BF16", "model.num_layers=3"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model().num_layers(), 3);
  EXPECT_EQ(config->optimizer().adamw().lr(), 3e-4);
  EXPECT_EQ(config->precision().mode(), PrecisionConfig::BF16);
}

TEST(LoadRunConfigTest, AConfigMayConsistOfOverrides) {
  EXPECT_TRUE(
      LoadRunConfig({}, {"model={num_layers: 1 d_model: 32 num_heads: 4"
                         " d_ff: 64 context_length: 16}",
                         "data.synthetic={}", "training.steps=1",
                         "training.batch_size=1", "optimizer.adamw.lr=1e-3"})
          .ok());
}

TEST(LoadRunConfigTest, EmptyConfigNamesEveryFieldWithoutADefault) {
  EXPECT_THAT(
      Errors("# nothing\n", {}),
      UnorderedElementsAre(
          ": model.num_layers: must be given, >= 1",
          ": model.d_model: must be given, >= 1",
          ": model.num_heads: must be given, >= 1",
          ": model.d_ff: must be given, >= 1",
          ": model.context_length: must be given, >= 1",
          ": training.steps: must be given, >= 1",
          ": training.batch_size: must be given, >= 1",
          HasSubstr(": optimizer.algorithm: must be given"),
          HasSubstr(": data.source: one of default_text, token_files")));
}

TEST(LoadRunConfigTest, ErrorsNameTheSourceOfEachValue) {
  EXPECT_THAT(Errors(absl::StrCat(kMinimal, "observe {\n",
                                  "  log_every_steps: 0\n}\nrecompute {}\n"),
                     {"training.seed=-1", "model={}", "recompute.every=0"}),
              ElementsAre("--set: model.num_layers: must be given, >= 1",
                          "--set: model.d_model: must be given, >= 1",
                          "--set: model.num_heads: must be given, >= 1",
                          "--set: model.d_ff: must be given, >= 1",
                          "--set: model.context_length: must be given, >= 1",
                          "--set: training.seed: must be >= 0; is -1",
                          "--set: recompute.every: must be >= 1; is 0",
                          ":7:3: observe.log_every_steps: must be >= 1; is 0"));
}

TEST(LoadRunConfigTest, EveryBadOverrideIsReported) {
  EXPECT_THAT(
      Errors(kMinimal, {"model.num_layer=2", "training.steps=1000",
                        "training.steps=few"}),
      ElementsAre("--set model.num_layer=2: ModelConfig has no field "
                  "'num_layer'; did you mean 'num_layers'?",
                  "--set training.steps=few: 'few' is not a whole number below "
                  "2^63"));
}

TEST(LoadRunConfigTest, UnknownFieldsAreReportedWithTheirLocation) {
  EXPECT_THAT(Errors("model { n_layers: 2 }\ntraning {}\n", {}),
              ElementsAre(":1:9: ModelConfig has no field 'n_layers'; did you "
                          "mean 'num_layers'?",
                          ":2:1: RunConfig has no field 'traning'; did you "
                          "mean 'training'?"));
}

// Two files, the second merged on top of the first.
class MergeConfigsTest : public ::testing::Test {
 protected:
  absl::StatusOr<RunConfig> Load(absl::string_view base,
                                 absl::string_view overlay,
                                 const std::vector<std::string>& sets = {}) {
    return LoadRunConfig(
        {WriteConfig(base, "base"), WriteConfig(overlay, "overlay")}, sets);
  }
  // The error, with "base" and "overlay" in place of the files' paths.
  std::string Error(absl::string_view base, absl::string_view overlay,
                    const std::vector<std::string>& sets = {}) {
    const std::string suffix = absl::StrCat("_", ::getpid(), ".pbtxt");
    return absl::StrReplaceAll(
        Load(base, overlay, sets).status().message(),
        {{::testing::TempDir() + "/", ""}, {suffix, ""}});
  }
};

TEST_F(MergeConfigsTest, LaterValuesWinAndMessagesAreMerged) {
  const auto config = Load(kMinimal,
                           "training { steps: 7 }\n"
                           "precision { mode: BF16 }\n"
                           "optimizer { adamw { beta2: 0.95 } }",
                           {"training.seed=3"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->training().steps(), 7);
  EXPECT_EQ(config->training().batch_size(), 4);
  EXPECT_EQ(config->training().seed(), 3);
  EXPECT_EQ(config->precision().mode(), PrecisionConfig::BF16);
  EXPECT_EQ(config->optimizer().adamw().lr(), 1e-3);
  EXPECT_EQ(config->optimizer().adamw().beta2(), 0.95);
}

TEST_F(MergeConfigsTest, ListsAndOneofCasesReplaceEarlierOnes) {
  const std::string base = absl::StrCat(
      "model { num_layers: 1 d_model: 32 num_heads: 4 d_ff: 64 "
      "context_length: 16 frozen: ['ln*', 'token*'] }\n"
      "data { synthetic { successors: 3 } }\n"
      "training { device: CPU steps: 100 batch_size: 4 }\n"
      "optimizer { adamw { lr: 1e-3 }\n"
      "  schedule { warmup_steps: 5 cosine { final_ratio: 0.5 } } }");
  const auto lists = [&](absl::string_view overlay) {
    const auto config = Load(base, overlay);
    EXPECT_TRUE(config.ok()) << config.status();
    return absl::StrJoin(config->model().frozen(), " ");
  };
  EXPECT_EQ(lists("model { d_ff: 128 }"), "ln* token*");
  EXPECT_EQ(lists("model { frozen: 'lm*' }"), "lm*");
  EXPECT_EQ(lists("model { frozen: [] }"), "");

  const auto config = Load(base,
                           "data { default_text { tokenizer: BYTES } }\n"
                           "optimizer { schedule { warmup_ratio: 0.5\n"
                           "  cosine { decay_steps: 9 } } }");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->data().has_synthetic());
  const ScheduleConfig& schedule = config->optimizer().schedule();
  EXPECT_FALSE(schedule.has_warmup_steps());
  // Fields of the same case are merged.
  EXPECT_EQ(schedule.cosine().final_ratio(), 0.5);
  EXPECT_EQ(schedule.cosine().decay_steps(), 9);
}

TEST_F(MergeConfigsTest, ErrorsNameTheFileThatSetsTheFieldLast) {
  const absl::string_view seed = "training {\n  seed: -1\n}";
  EXPECT_EQ(Error(kMinimal, seed),
            "overlay:2:3: training.seed: must be >= 0; is -1");
  EXPECT_EQ(Error(absl::StrCat(kMinimal, "observe { log_every_steps: 0 }"),
                  "training { seed: 5 }\nobserve {}"),
            "base:6:11: observe.log_every_steps: must be >= 1; is 0");
  EXPECT_EQ(Error(kMinimal, seed, {"training.seed=-2"}),
            "--set: training.seed: must be >= 0; is -2");
  // A broken rule between fields of both files is reported at one of them.
  EXPECT_THAT(Error(kMinimal, "training { micro_batches: 3 }"),
              StartsWith("base:4:35: training.batch_size: must be a multiple "
                         "of micro_batches, 3; is 4"));
  EXPECT_THAT(Error(kMinimal, "precision { mode: FP16 }"),
              StartsWith("overlay:1:13: precision.mode: FP16 needs"));
}

TEST_F(MergeConfigsTest, FieldsThatNoFileSetsHaveALocationToo) {
  EXPECT_THAT(Error("model { num_layers: 1 }", "training { steps: 3 }"),
              AllOf(HasSubstr("base:1:1: model.d_model: must be given"),
                    HasSubstr("overlay:1:1: training.batch_size: must be"),
                    HasSubstr("base + overlay: data.source: one of")));
  EXPECT_EQ(Error(kMinimal, "model { vocab_size: 3 }\ndata { synthetic {} }"),
            "overlay:2:8: data.synthetic.successors: must be at most "
            "model.vocab_size, 3; is 4 (the default)");
}

TEST_F(MergeConfigsTest, ErrorsPointIntoTheEffectiveList) {
  constexpr absl::string_view kRest = R"(
model { num_layers: 1 d_model: 32 num_heads: 4 d_ff: 64 context_length: 16 }
data { synthetic {} }
training { device: CPU steps: 100 batch_size: 4 }
optimizer { adamw { lr: 1e-3 } })";
  EXPECT_THAT(Error("model { frozen: 'nope' }", kRest),
              StartsWith("base:1:9: model.frozen[0]: pattern 'nope'"));
  EXPECT_THAT(
      Error("model { frozen: 'ln*' frozen: 'token*' }",
            absl::StrReplaceAll(
                kRest, {{"model {", "model { frozen: ['lm*', 'nope']"}})),
      StartsWith("overlay:2:9: model.frozen[1]: pattern 'nope'"));
}

TEST_F(MergeConfigsTest, EveryFileIsReadBeforeItsErrorsAreReported) {
  EXPECT_EQ(Error("traning {}", "model {\n  n_layers: 2\n}"),
            "base:1:1: RunConfig has no field 'traning'; did you mean "
            "'training'?\n"
            "overlay:2:3: ModelConfig has no field 'n_layers'; did you mean "
            "'num_layers'?");
  const absl::Status missing =
      LoadRunConfig({WriteConfig(kMinimal), "nowhere.pbtxt"}, {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              StartsWith("there is no config nowhere.pbtxt\n"));
}

TEST(LoadRunConfigTest, MissingFileListsSearchedPlacesAndExistingConfigs) {
  for (const auto& [path, hint] : std::map<std::string, std::string>{
           {"configs/tiny_cpv.pbtxt", "did you mean configs/tiny_cpu.pbtxt?"},
           {"small_bf61", "did you mean configs/small_bf16.pbtxt?"},
           {"tiny", "did you mean configs/tiny_cpu.pbtxt,"},
           {"configs/flash_cuda.pbtxt",
            "did you mean configs/attention/flash_cuda.pbtxt?"},
           {"nope",
            "there are configs/NAME.pbtxt with NAME one of 2.7B, "
            "2.7B_bf16,"}}) {
    const absl::Status status = LoadRunConfig({path}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr("there is no config " + path + "\n"));
    EXPECT_THAT(message, HasSubstr(hint));
    // Each place is on its own line.
    EXPECT_THAT(message, HasSubstr("\nlooked for\n  "));
    EXPECT_THAT(message, HasSubstr(".runfiles/tessera/" + path + "\n"));
    EXPECT_THAT(message, Not(HasSubstr("tessera/" + path + ", ")));
  }
}

TEST(LoadRunConfigTest, SuggestsAConfigInTheFolderOfAMissingOne) {
  const std::string path = WriteConfig(kMinimal);
  const std::string here = std::filesystem::current_path();
  ASSERT_EQ(::chdir(::testing::TempDir().c_str()), 0);
  const std::string name = path.substr(path.rfind('/') + 1);
  EXPECT_THAT(std::string(LoadRunConfig({"x" + name}, {}).status().message()),
              HasSubstr("\ndid you mean " + name + "?\n"));
  EXPECT_EQ(::chdir(here.c_str()), 0);
}

TEST(LoadRunConfigTest, WarmupIsWhatWasSetLast) {
  const auto warmup = [](absl::string_view text,
                         const std::vector<std::string>& sets) {
    return LoadRunConfig({WriteConfig(text)}, sets)->optimizer().schedule();
  };
  const std::string ratio = "optimizer.schedule.warmup_ratio=0.25";
  const std::string steps = "optimizer.schedule.warmup_steps=7";
  EXPECT_FALSE(warmup(kMinimal, {steps, ratio}).has_warmup_steps());
  EXPECT_FALSE(warmup(kMinimal, {ratio, steps}).has_warmup_ratio());
  EXPECT_EQ(warmup(kMinimal, {ratio, steps}).warmup_steps(), 7);
}

std::string BaseField(absl::string_view name) {
  return absl::StrCat("base: \"", FileName(name), "\" ");
}

TEST(LoadRunConfigTest, AConfigChangesItsBase) {
  const std::string base = WriteConfig(kMinimal, "base");
  WriteConfig(BaseField("base") + "\nmodel { num_heads: 2 }", "middle");
  const std::string top =
      WriteConfig("training { seed: 5 } " + BaseField("middle"), "top");
  const auto config = LoadRunConfig({top}, {});
  ASSERT_TRUE(config.ok()) << config.status();
  RunConfig expected = LoadRunConfig({base}, {}).value();
  expected.mutable_training()->set_seed(5);
  expected.mutable_model()->set_num_heads(2);
  EXPECT_EQ(PrintWithDefaults(*config), PrintWithDefaults(expected));
  // The place is in the file that sets the field.
  EXPECT_THAT(ConfigSource({top}, {}, "model.num_heads"),
              ::testing::EndsWith(FileName("middle") + ":2:9"));
}

TEST(LoadRunConfigTest, ABaseThatIsNoneIsLocated) {
  const auto error = [](const std::string& path, const std::string& set) {
    return std::string(LoadRunConfig({path}, {set}).status().message());
  };
  const std::string lost = WriteConfig(BaseField("nowhere"), "lost");
  EXPECT_THAT(error(lost, "training.seed=1"),
              ::testing::AllOf(HasSubstr(FileName("lost") + ":1:1: base: "),
                               HasSubstr(FileName("nowhere"))));
  for (const char* name : {"", "\\n"}) {
    EXPECT_THAT(error(WriteConfig(absl::StrCat("base: \"", name, "\"")),
                      "training.seed=1"),
                ::testing::EndsWith(":1:1: base: is no file name"));
  }
  const std::string a = WriteConfig(BaseField("b"), "a");
  WriteConfig(BaseField("a"), "b");
  EXPECT_THAT(error(a, "training.seed=1"),
              HasSubstr(FileName("b") +
                        ":1:1: base: a config cannot be based on itself"));
  EXPECT_EQ(error(WriteConfig(kMinimal), "base=configs/small.pbtxt"),
            "--set: base: only a file can name its base; give --config twice");
}

TEST(LoadRunConfigTest, FindsInstalledConfigs) {
  const std::string here = std::filesystem::current_path();
  ASSERT_EQ(::chdir("/"), 0);
  const absl::Status status =
      LoadRunConfig({"configs/tiny_cpu.pbtxt"}, {}).status();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(::chdir(here.c_str()), 0);
}

TEST(ConfigHashTest, DependsOnTheValuesNotTheText) {
  const auto hash = [](absl::string_view text) {
    const auto config = LoadRunConfig({WriteConfig(text)}, {});
    return config.ok() ? ConfigHash(*config) : "error";
  };
  const std::string minimal = hash(kMinimal);
  EXPECT_THAT(minimal, ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_EQ(hash(absl::StrCat("# again\n", kMinimal,
                              "precision { mode: FP32 }\nattention {}")),
            minimal);
  EXPECT_NE(hash(absl::StrCat(kMinimal, "precision { mode: BF16 }")), minimal);
}

}  // namespace
}  // namespace tessera
