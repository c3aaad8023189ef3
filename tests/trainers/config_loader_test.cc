#include "trainers/config/config_loader.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/base/text_proto.h"
#include "framework/optim/optimizer_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// The fields without a default.
constexpr absl::string_view kMinimal = R"(
model { num_layers: 1 d_model: 32 num_heads: 4 d_ff: 64 context_length: 16 }
data { synthetic {} }
training { device: CPU steps: 100 batch_size: 4 }
optimizer { adamw { lr: 1e-3 } }
)";

std::string FileName(absl::string_view name) {
  return absl::StrCat(name, "_", ::getpid(), ".pbtxt");
}

std::string WriteConfig(absl::string_view text,
                        absl::string_view name = "config") {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/", FileName(name));
  EXPECT_TRUE(WriteFileAtomically(path, text).ok());
  return path;
}

// The lines of the error, without the file's path.
std::vector<std::string> Errors(absl::string_view text,
                                const std::vector<std::string>& overrides) {
  const std::string path = WriteConfig(text);
  const absl::Status status = LoadRunConfig({path}, overrides).status();
  if (status.ok()) return {};
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    lines.emplace_back(absl::StripPrefix(line, path));
  }
  return lines;
}

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

struct Rule {
  std::vector<std::string> overrides;  // of kMinimal; break one rule
  std::string path;
  std::string message;  // part of the message
};

class RuleTest : public ::testing::TestWithParam<Rule> {};

TEST_P(RuleTest, IsReportedAlone) {
  EXPECT_THAT(Errors(kMinimal, GetParam().overrides),
              ElementsAre(::testing::AllOf(
                  HasSubstr(absl::StrCat(": ", GetParam().path, ": ")),
                  HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Model, RuleTest,
    ::testing::Values(
        Rule{{"model.vocab_size=1", "data.synthetic.successors=1"},
             "model.vocab_size",
             "must be >= 2; is 1"},
        Rule{{"model.num_layers=0"}, "model.num_layers", "must be >= 1; is 0"},
        Rule{{"model.d_model=0"}, "model.d_model", "must be >= 1; is 0"},
        Rule{{"model.num_layers=20000000"},
             "model.num_layers",
             "must be at most 10000; is 20000000"},
        Rule{{"model.vocab_size=16777217"},
             "model.vocab_size",
             "must be at most 16777216; is 16777217"},
        Rule{{"model.d_model=2097152", "model.num_heads=8192"},
             "model.d_model",
             "must be at most 1048576; is 2097152"},
        Rule{{"model.d_ff=1048577"},
             "model.d_ff",
             "must be at most 1048576; is 1048577"},
        Rule{{"model.num_heads=-1"}, "model.num_heads", "must be >= 1; is -1"},
        Rule{{"model.d_ff=0"}, "model.d_ff", "must be >= 1; is 0"},
        Rule{{"model.context_length=0"},
             "model.context_length",
             "must be >= 1; is 0"},
        Rule{{"model.d_model=33"},
             "model.d_model",
             "must be a multiple of num_heads, 4; is 33"},
        Rule{{"model.d_model=48"},
             "model.d_model",
             "48 / 4 = 12; must be a multiple of 8, at most 256"},
        Rule{{"model.d_model=1056"},
             "model.d_model",
             "1056 / 4 = 264; must be a multiple of 8, at most 256"},
        Rule{{"model.num_kv_heads=3"},
             "model.num_kv_heads",
             "must divide num_heads, 4; is 3"},
        Rule{{"model.num_kv_heads=0"}, "model.num_kv_heads", "is 0"},
        Rule{{"model.rope_theta=0"}, "model.rope_theta", "must be > 0; is 0"},
        Rule{{"model.norm_eps=nan"}, "model.norm_eps", "must be > 0; is nan"},
        Rule{{"model.norm_eps=1e-60"}, "model.norm_eps", "the range of FP32"},
        Rule{{"model.logit_soft_cap=0"},
             "model.logit_soft_cap",
             "must be > 0, or absent for no cap; is 0"},
        Rule{{"model.logit_soft_cap=nan"},
             "model.logit_soft_cap",
             "must be > 0, or absent for no cap; is nan"},
        Rule{{"model.logit_soft_cap=inf"},
             "model.logit_soft_cap",
             "the range of FP32"},
        Rule{{"model.rope_layout=UNSPECIFIED"},
             "model.rope_layout",
             "INTERLEAVED or HALVED"},
        Rule{{"model.frozen=['a', '']"}, "model.frozen[1]", "is empty"}));

INSTANTIATE_TEST_SUITE_P(
    Training, RuleTest,
    ::testing::Values(
        Rule{{"training.device=UNSPECIFIED"}, "training.device", "CPU or CUDA"},
        Rule{{"training.steps=0"}, "training.steps", "must be >= 1; is 0"},
        Rule{{"training.batch_size=0"},
             "training.batch_size",
             "must be >= 1; is 0"},
        Rule{{"training.micro_batches=0"},
             "training.micro_batches",
             "must be >= 1; is 0"},
        Rule{{"training.micro_batches=3"},
             "training.batch_size",
             "must be a multiple of micro_batches, 3; is 4"},
        Rule{{"training.seed=-1"}, "training.seed", "must be >= 0; is -1"},
        Rule{{"training.eval_every_steps=0"},
             "training.eval_every_steps",
             "must be >= 1; is 0; remove the field"},
        Rule{{"training.eval_batches=-1"},
             "training.eval_batches",
             "must be >= 0; is -1"},
        Rule{{"training.sample_tokens_at_end=1048577"},
             "training.sample_tokens_at_end",
             "[0, 2^20]"},
        Rule{{"training.sample_prompt='caf\\xe9'"},
             "training.sample_prompt",
             "must be text; byte 3: 0xe9 is not UTF-8"},
        Rule{{"training.label_smoothing=1"},
             "training.label_smoothing",
             "must be in [0, 1); is 1"},
        Rule{{"training.label_smoothing=-0.1"},
             "training.label_smoothing",
             "must be in [0, 1); is -0.1"},
        Rule{{"training.label_smoothing=nan"},
             "training.label_smoothing",
             "must be in [0, 1); is nan"},
        Rule{{"training.z_loss=-1e-4"},
             "training.z_loss",
             "must be >= 0; is -0.0001"},
        Rule{{"training.z_loss=inf"},
             "training.z_loss",
             "must be in the range of FP32, at most 3.40282e+38; is inf"}));

INSTANTIATE_TEST_SUITE_P(
    How, RuleTest,
    ::testing::Values(
        Rule{{"attention.backend=UNSPECIFIED"}, "attention.backend", "AUTO"},
        Rule{{"attention.naive.held_score_tensors=3"},
             "attention.naive.held_score_tensors",
             "3 needs backend: NAIVE; backend is AUTO"},
        Rule{{"attention={backend: FLASH_CUDA naive {held_score_tensors: 2}}"},
             "attention.naive.held_score_tensors",
             "2 needs backend: NAIVE; backend is FLASH_CUDA"},
        Rule{{"attention={backend: NAIVE naive {held_score_tensors: 4}}"},
             "attention.naive.held_score_tensors",
             "must be 1, 2 or 3; is 4"},
        Rule{{"attention={backend: NAIVE naive {held_score_tensors: 0}}"},
             "attention.naive.held_score_tensors",
             "must be 1, 2 or 3; is 0"},
        Rule{{"recompute.policy=UNSPECIFIED"}, "recompute.policy", "BLOCK"},
        Rule{{"execution.storage=UNSPECIFIED"}, "execution.storage", "ARENA"},
        Rule{{"model.feed_forward=FEED_FORWARD_UNSPECIFIED"},
             "model.feed_forward",
             "must be SWIGLU or RELU_SQUARED"},
        Rule{{"recompute.every=0"}, "recompute.every", "must be >= 1; is 0"},
        Rule{{"precision.mode=UNSPECIFIED"}, "precision.mode", "BF16_PURE"},
        Rule{{"precision.loss_scaler.initial_scale=0"},
             "precision.loss_scaler.initial_scale",
             "must be > 0; is 0"},
        Rule{{"precision.loss_scaler.growth_factor=1"},
             "precision.loss_scaler.growth_factor",
             "must be > 1; is 1"},
        Rule{{"precision.loss_scaler.backoff_factor=1"},
             "precision.loss_scaler.backoff_factor",
             "must be in (0, 1); is 1"},
        Rule{{"precision.loss_scaler.backoff_factor=0"},
             "precision.loss_scaler.backoff_factor",
             "must be in (0, 1); is 0"},
        Rule{{"precision.loss_scaler.growth_factor=0"},
             "precision.loss_scaler.growth_factor",
             "must be > 1; is 0"},
        Rule{{"precision.loss_scaler.backoff_factor=1e-60"},
             "precision.loss_scaler.backoff_factor",
             "the range of FP32"},
        Rule{{"precision.loss_scaler.growth_interval_steps=0"},
             "precision.loss_scaler.growth_interval_steps",
             "must be >= 1; is 0"}));

INSTANTIATE_TEST_SUITE_P(
    BetweenMessages, RuleTest,
    ::testing::Values(
        Rule{{"precision.mode=TF32"},
             "precision.mode",
             "TF32 needs training.device: CUDA"},
        Rule{{"precision.mode=FP16"},
             "precision.mode",
             "FP16 needs training.device: CUDA"},
        Rule{{"observe.memory_snapshot_step=3"},
             "observe.memory_snapshot_step",
             "is 3, but needs training.device: CUDA"},
        Rule{{"training.device=CUDA", "observe.memory_snapshot_step=101"},
             "observe.memory_snapshot_step",
             "must be at most training.steps, 100; is 101"},
        Rule{{"observe.trace={wait: 98 warmup: 1 active: 2}"},
             "observe.trace.active",
             "ends with step 101, but training.steps is 100"},
        Rule{{"optimizer.schedule.warmup_steps=100"},
             "optimizer.schedule.warmup_steps",
             "must be less than training.steps, 100; is 100; lower it, raise "
             "training.steps, or set optimizer.schedule.warmup_ratio"},
        Rule{{"optimizer.schedule.warmup_steps=50",
              "optimizer.schedule.wsd.decay_steps=51"},
             "optimizer.schedule.wsd.decay_steps",
             "the warm-up, 100 - 50 = 50; is 51"},
        Rule{{"optimizer.schedule.warmup_ratio=0.4",
              "optimizer.schedule.wsd.decay_steps=61"},
             "optimizer.schedule.wsd.decay_steps",
             "the warm-up, 100 - 40 = 60; is 61"},
        Rule{{"optimizer.schedule.warmup_ratio=-1",
              "optimizer.schedule.wsd.decay_steps=61"},
             "optimizer.schedule.warmup_ratio",
             "must be in [0, 1), a fraction of training.steps; is -1"},
        Rule{{"training.batch_size=2000000000",
              "model.context_length=2000000000"},
             "training.batch_size",
             "no machine can hold this model with 2000000000 x "
             "2000000000"},
        Rule{{"model.context_length=2000000000"},
             "training.batch_size",
             "4 x 2000000000"},
        Rule{{"data.default_text.tokenizer=BYTES", "model.vocab_size=256"},
             "data.default_text.tokenizer",
             "BYTES needs model.vocab_size >= 257; it is 256"},
        Rule{{"data.default_text.tokenizer=BPE", "model.vocab_size=299"},
             "data.default_text.tokenizer",
             "BPE needs model.vocab_size >= 300, BYTES needs 257; it is 299"},
        Rule{{"model.vocab_size=3"},
             "data.synthetic.successors",
             "must be at most model.vocab_size, 3; is 4 (the default)"}));

INSTANTIATE_TEST_SUITE_P(
    Patterns, RuleTest,
    ::testing::Values(
        Rule{{"model.frozen=['ln*', 'layers.0.ffn.w1.*']"},
             "model.frozen[1]",
             "'layers.0.ffn.w1.*' matches only part of layers.0.ffn.w13"},
        Rule{{"optimizer.adamw.groups=[{name: 'a' patterns: '*'}, "
              "{name: 'b' patterns: 'ln*'}]"},
             "optimizer.adamw.groups",
             "parameter ln_final.weight matches both \"a\" and \"b\""},
        // Frozen parameters need no group. q has 1,600 elements, not a multiple
        // of 128, so k starts in the middle of a chunk.
        Rule{{"model.frozen=['token*', '*ln*', 'lm*']", "model.d_model=40",
              "model.num_heads=5",
              "optimizer.adamw.groups=[{name: 'a' patterns: '*.q_proj.*'}, "
              "{name: 'b' patterns: '*.k_proj.*' patterns: '*.v_proj.*' "
              "patterns: '*.output*' patterns: '*.ffn.*'}]"},
             "optimizer.adamw.groups",
             "parameter layers.0.attn.k_proj.weight of group \"b\" is "
             "fused with a parameter of group \"a\""}));

// Appends the paths of all floating-point fields of a config.
void CollectDoubles(const google::protobuf::Descriptor& type,
                    const std::string& prefix,
                    std::vector<std::string>* paths) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) continue;
    const std::string path = absl::StrCat(prefix, field.name());
    if (field.message_type() != nullptr) {
      CollectDoubles(*field.message_type(), path + ".", paths);
    } else if (field.cpp_type() ==
               google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      paths->push_back(path);
    }
  }
}

// A field at the ends of FP64's range is either rejected or in FP32's range.
TEST(LoadRunConfigTest, AcceptedNumbersAreInTheRangeOfFp32) {
  std::vector<std::string> paths;
  CollectDoubles(*RunConfig::descriptor(), "", &paths);
  EXPECT_THAT(paths, ::testing::Contains("observe.peak_tflops"));
  // Zero is valid, too, for these.
  const std::set<std::string> may_vanish = {
      "data.validation_fraction",
      "optimizer.adamw.beta1",
      "optimizer.adamw.beta2",
      "optimizer.adamw.weight_decay",
      "optimizer.schedule.warmup_ratio",
      "optimizer.schedule.cosine.final_ratio",
      "optimizer.schedule.linear.final_ratio",
      "optimizer.schedule.wsd.final_ratio",
      "training.label_smoothing",
      "training.z_loss"};
  for (const std::string& path : paths) {
    for (const char* value : {"nan", "inf", "-inf", "1e308", "-1e-320"}) {
      EXPECT_THAT(Errors(kMinimal, {path + "=" + value}), Not(ElementsAre()))
          << path << "=" << value;
    }
    if (may_vanish.contains(path)) continue;
    EXPECT_THAT(Errors(kMinimal, {path + "=1e-320"}), Not(ElementsAre()))
        << path;
  }
}

TEST(LoadRunConfigTest, AViolationIsOneLineForAnyValue) {
  EXPECT_THAT(Errors(kMinimal, {"model.frozen=a\nb"}),
              ElementsAre(HasSubstr("pattern 'a\\nb' matches no parameter")));
}

TEST(LoadRunConfigTest, EveryPatternThatMatchesNoParameterIsLocated) {
  EXPECT_THAT(
      Errors("model {\n  num_layers: 1 d_model: 32 num_heads: 4 d_ff: 64\n"
             "  context_length: 16\n  frozen: \"nope\"\n}\n"
             "data { synthetic {} }\n"
             "training { device: CPU steps: 100 batch_size: 4 }\n"
             "optimizer {\n  adamw {\n    lr: 1e-3\n"
             "    groups { name: \"a\" patterns: \"layers*\"\n"
             "             patterns: \"heads*\" }\n  }\n}\n",
             {}),
      ElementsAre(
          ":4:3: model.frozen[0]: pattern 'nope' matches no parameter; names "
          "look like token_embeddings.weight and lm_head.weight",
          ":12:14: optimizer.adamw.groups[0].patterns[1]: pattern \"heads*\" "
          "of group \"a\" matches no parameter; the first parameter is "
          "token_embeddings.weight",
          ":11:5: optimizer.adamw.groups: parameter token_embeddings.weight "
          "matches no group; add a pattern for it"));
}

// Each rule is tested by the owner of its message.
INSTANTIATE_TEST_SUITE_P(
    OtherMessagesAreChecked, RuleTest,
    ::testing::Values(
        Rule{{"checkpoint.keep_last=0"}, "checkpoint.keep_last", ""},
        Rule{{"data.validation_fraction=2"}, "data.validation_fraction", ""},
        Rule{{"observe.log_every_steps=0"}, "observe.log_every_steps", ""},
        Rule{{"optimizer.adamw.beta2=1.5"}, "optimizer.adamw.beta2", ""}));

TEST(LoadRunConfigTest, AllowsTheEdgesOfEveryRange) {
  EXPECT_THAT(
      Errors(kMinimal,
             {"model.d_model=1024", "model.num_kv_heads=1",
              "training.micro_batches=4", "training.eval_batches=0",
              "optimizer.schedule.warmup_steps=99",
              "optimizer.schedule.wsd.decay_steps=1", "model.vocab_size=4"}),
      ElementsAre());
  EXPECT_THAT(Errors(kMinimal, {"data.default_text.tokenizer=BYTES",
                                "model.vocab_size=257"}),
              ElementsAre());
  EXPECT_THAT(Errors(kMinimal, {"data.default_text.tokenizer=BPE",
                                "model.vocab_size=300"}),
              ElementsAre());
  EXPECT_THAT(Errors(kMinimal, {"optimizer.schedule.warmup_steps=10",
                                "optimizer.schedule.wsd.decay_steps=90"}),
              ElementsAre());
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

// d_model, d_ff, layers, heads, parameters as counted in docs/design.md.
struct Size {
  int d_model, d_ff, layers, heads;
  double millions;
};
const std::map<std::string, Size> kSizes = {
    {"small", {768, 3072, 12, 12, 128.6}},
    {"medium", {1024, 4096, 24, 16, 423.2}},
    {"large", {1280, 5120, 36, 20, 969.4}},
    {"xl", {1600, 6400, 48, 25, 1998}},
    {"2.7B", {2560, 10240, 32, 32, 3407}},
};

// For docs/design.md's model with an untied head.
double MillionsOfParameters(const ModelConfig& model) {
  const double c = model.d_model(), f = model.d_ff();
  const double block = 4 * c * c + 3 * c * f + 2 * c;
  return (2.0 * model.vocab_size() * c + model.num_layers() * block + c) / 1e6;
}

class ConfigFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto tiny = FindRuntimeFile("configs/tiny_cpu.pbtxt");
    ASSERT_TRUE(tiny.ok()) << tiny.status();
    folder_ = tiny->substr(0, tiny->rfind('/'));
    files_ = Names("");
    ASSERT_GE(files_.size(), kSizes.size());
  }

  // The files of a folder in configs/, as "naive.pbtxt".
  std::vector<std::string> Names(const std::string& folder) const {
    std::vector<std::string> names;
    const auto all = ListDirectory(absl::StrCat(folder_, "/", folder));
    EXPECT_TRUE(all.ok()) << all.status();
    for (const std::string& name : *all) {
      if (absl::EndsWith(name, ".pbtxt")) names.push_back(name);
    }
    return names;
  }

  // The config from files in configs/, named without ".pbtxt".
  RunConfig Load(std::vector<std::string> names) const {
    for (std::string& name : names) {
      name = absl::StrCat(folder_, "/", name, ".pbtxt");
    }
    const auto config = LoadRunConfig(names, {});
    EXPECT_TRUE(config.ok()) << config.status();
    return config.value_or(RunConfig());
  }

  std::string folder_;
  std::vector<std::string> files_;  // files that are valid on their own
};

TEST_F(ConfigFilesTest, EveryOneParsesAndIsValid) {
  for (const std::string& file : files_) {
    const auto config = LoadRunConfig({folder_ + "/" + file}, {});
    EXPECT_TRUE(config.ok()) << config.status();
  }
}

TEST_F(ConfigFilesTest, EveryOneTrainsForAnyNumberOfSteps) {
  for (const std::string& file : files_) {
    for (const int64_t steps : {1, 2, 3, 20, 1000}) {
      const auto config = LoadRunConfig(
          {folder_ + "/" + file}, {absl::StrCat("training.steps=", steps)});
      ASSERT_TRUE(config.ok()) << config.status();
      const OptimizerConfig& optimizer = config->optimizer();
      EXPECT_TRUE(CreateLearningRateSchedule(optimizer.schedule(),
                                             optimizer.adamw().lr(), steps)
                      .ok())
          << file;
    }
  }
}

// As in the training of published results.
TEST_F(ConfigFilesTest, WarmupTakesATenthOrAnEighthOfTheSteps) {
  for (const std::string& file : files_) {
    const auto config = LoadRunConfig({folder_ + "/" + file}, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const int64_t steps = config->training().steps();
    EXPECT_EQ(WarmupSteps(config->optimizer().schedule(), steps),
              file == "tiny_cpu.pbtxt" ? 50 : steps / 10)
        << file;
  }
}

TEST_F(ConfigFilesTest, EveryOneStartsWithItsSchemaAndPurpose) {
  for (const char* folder : {"", "precision/", "attention/"}) {
    for (const std::string& name : Names(folder)) {
      EXPECT_THAT(ReadFile(absl::StrCat(folder_, "/", folder, name)).value(),
                  StartsWith("# proto-file: trainers/config/run_config.proto\n"
                             "# proto-message: tessera.RunConfig\n"
                             "# "))
          << folder << name;
    }
  }
}

TEST_F(ConfigFilesTest, SizesMatchTheDesign) {
  for (const auto& [name, size] : kSizes) {
    const RunConfig config = Load({name});
    const ModelConfig& model = config.model();
    EXPECT_EQ(model.d_model(), size.d_model) << name;
    EXPECT_EQ(model.d_ff(), size.d_ff) << name;
    EXPECT_EQ(model.num_layers(), size.layers) << name;
    EXPECT_EQ(model.num_heads(), size.heads) << name;
    EXPECT_NEAR(MillionsOfParameters(model), size.millions,
                size.millions * 5e-4)
        << name;
    EXPECT_EQ(config.precision().mode(), PrecisionConfig::FP32);
    EXPECT_EQ(config.training().batch_size(), 4);
    EXPECT_EQ(model.context_length(), 512);
  }
}

// The files of attention/, as "naive", with the backend that each sets.
std::map<std::string, AttentionConfig::Backend> Backends() {
  std::map<std::string, AttentionConfig::Backend> backends;
  const auto& type = *AttentionConfig::Backend_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    const auto backend = AttentionConfig::Backend(type.value(i)->number());
    if (backend == AttentionConfig::UNSPECIFIED) continue;
    if (backend == AttentionConfig::AUTO) continue;
    backends[absl::AsciiStrToLower(type.value(i)->name())] = backend;
  }
  return backends;
}

// An overlay sets what its name says. Those of attention/ also turn determinism
// off, which not every backend supports.
TEST_F(ConfigFilesTest, EverySizeTakesEveryPrecisionAndBackend) {
  const std::map<std::string, PrecisionConfig::Mode> precisions = {
      {"fp32", PrecisionConfig::FP32}, {"bf16", PrecisionConfig::BF16}};
  EXPECT_EQ(Names("precision").size(), precisions.size());
  EXPECT_EQ(Names("attention").size(), Backends().size());
  for (const auto& [size, unused] : kSizes) {
    RunConfig expected = Load({size});
    EXPECT_TRUE(expected.training().deterministic());
    for (const auto& [precision, mode] : precisions) {
      expected.mutable_precision()->set_mode(mode);
      EXPECT_EQ(PrintWithDefaults(Load({size, "precision/" + precision})),
                PrintWithDefaults(expected));
      RunConfig with_backend = expected;
      with_backend.mutable_training()->set_deterministic(false);
      for (const auto& [name, backend] : Backends()) {
        with_backend.mutable_attention()->set_backend(backend);
        EXPECT_EQ(PrintWithDefaults(Load(
                      {size, "precision/" + precision, "attention/" + name})),
                  PrintWithDefaults(with_backend));
      }
    }
  }
}

// The sizes in the README's commands have their own files.
TEST_F(ConfigFilesTest, NamedConfigsHaveTheirSizeAndPrecision) {
  for (const char* size : {"small", "2.7B"}) {
    EXPECT_EQ(PrintWithDefaults(Load({absl::StrCat(size, "_bf16")})),
              PrintWithDefaults(Load({size, "precision/bf16"})));
  }
}

TEST_F(ConfigFilesTest, ResolvedTextIsAConfigOfTheSameRun) {
  for (const std::string& file : files_) {
    const auto config = LoadRunConfig({folder_ + "/" + file}, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const auto again =
        LoadRunConfig({WriteConfig(PrintWithDefaults(*config))}, {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(ConfigHash(*again), ConfigHash(*config)) << file;
  }
}

}  // namespace
}  // namespace tessera
