#include "trainers/config/run_config.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/config/config_text.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
        Rule{{"model.head_dim=0"}, "model.head_dim", "multiple of 8, at most"},
        Rule{{"model.head_dim=12"}, "model.head_dim", "256; is 12"},
        Rule{{"model.head_dim=264"}, "model.head_dim", "256; is 264"},
        Rule{{"model.head_dim=64", "model.num_heads=32768"},
             "model.num_heads",
             "times head_dim must be at most 1048576; is 2097152"},
        Rule{{"model.norm_placement=NORM_PLACEMENT_UNSPECIFIED"},
             "model.norm_placement",
             "must be BEFORE or AFTER"},
        Rule{{"model.rope_scaling.factor=0.5"},
             "model.rope_scaling.factor",
             "must be >= 1; is 0.5"},
        Rule{{"model.rope_scaling.factor=nan"},
             "model.rope_scaling.factor",
             "is nan"},
        Rule{{"model.rope_scaling.low_freq_factor=0"},
             "model.rope_scaling.low_freq_factor",
             "must be > 0; is 0"},
        Rule{{"model.rope_scaling.high_freq_factor=1"},
             "model.rope_scaling.high_freq_factor",
             "must be > low_freq_factor, 1; is 1"},
        Rule{{"model.rope_scaling.original_context_length=0"},
             "model.rope_scaling.original_context_length",
             "must be >= 1; is 0"},
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
        Rule{{"model.attention_soft_cap=-1"},
             "model.attention_soft_cap",
             "must be > 0, or absent for no cap; is -1"},
        Rule{{"model.attention_window=[{tokens: 8}, {tokens: 0}]"},
             "model.attention_window[1].tokens",
             "must be >= 1, or absent for all tokens; is 0"},
        Rule{{"model.qk_norm=QK_NORM_UNSPECIFIED"},
             "model.qk_norm",
             "must be NONE, HEAD or PROJECTION"},
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
        Rule{{"precision.loss_scaler.initial_scale=1e-9"},
             "precision.loss_scaler.initial_scale",
             "must be at least 5.96046e-08 (2^-24); is 1e-09"},
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
             "model.frozen",
             "matches only part of layers.0.ffn.w13, whose members are one "
             "fused matrix: layers.0.ffn.w1.weight, but not "
             "layers.0.ffn.w3.weight; freeze all of them or none"},
        Rule{{"optimizer.muon.patterns=['*.w2.*', '*.q_proj.*', '*.v_proj.*']"},
             "optimizer.muon.patterns",
             "matches only part of layers.0.attn.qkv, whose members are one "
             "fused matrix: layers.0.attn.q_proj.weight, "
             "layers.0.attn.v_proj.weight, but not "
             "layers.0.attn.k_proj.weight; name all of them"},
        Rule{{"model.frozen=['*.w1.*', 'nope', '*.w3.*']"},
             "model.frozen[1]",
             "pattern 'nope' matches no parameter"},
        Rule{{"optimizer.muon.patterns='ln_final.weight'"},
             "optimizer.muon.patterns[0]",
             "'ln_final.weight' matches no matrix that is trained"},
        Rule{{"model.frozen='layers.*'", "optimizer.muon.lr=0.02"},
             "optimizer.muon",
             "'layers.*' matches no matrix that is trained"},
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

// Several patterns may name the members of a fused matrix.
TEST(RunConfigTest, TakesAFusedMatrixByItsMembers) {
  const std::string members =
      "['*.q_proj.*', '*.k_proj.*', '*.v_proj.*', '*.w1.*', '*.w3.*']";
  EXPECT_THAT(Errors(kMinimal, {"model.frozen=" + members}), IsEmpty());
  EXPECT_THAT(Errors(kMinimal, {"optimizer.muon.patterns=" + members}),
              IsEmpty());
  EXPECT_THAT(Errors(kMinimal, {"optimizer.muon.patterns=['layers.*', "
                                "'layers.*.q_proj.*']"}),
              IsEmpty());
}

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
TEST(RunConfigTest, AcceptedNumbersAreInTheRangeOfFp32) {
  std::vector<std::string> paths;
  CollectDoubles(*RunConfig::descriptor(), "", &paths);
  EXPECT_THAT(paths, ::testing::Contains("observe.peak_tflops"));
  // Zero is valid, too, for these.
  const std::set<std::string> may_vanish = {
      "data.validation_fraction",
      "optimizer.adamw.beta1",
      "optimizer.adamw.beta2",
      "optimizer.adamw.weight_decay",
      "optimizer.ema.decay",
      "optimizer.muon.momentum",
      "optimizer.muon.normuon_beta2",
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

TEST(RunConfigTest, AViolationIsOneLineForAnyValue) {
  EXPECT_THAT(Errors(kMinimal, {"model.frozen=a\nb"}),
              ElementsAre(HasSubstr("pattern 'a\\nb' matches no parameter")));
}

TEST(RunConfigTest, EveryPatternThatMatchesNoParameterIsLocated) {
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

TEST(RunConfigTest, AllowsTheEdgesOfEveryRange) {
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

}  // namespace
}  // namespace tessera
