#include "trainers/hugging_face/config_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kLlama[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "hidden_act": "silu", "pad_token_id": null,
  "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}})";
constexpr char kLlamaModel[] =
    "vocab_size: 300 d_model: 32 d_ff: 64 num_layers: 4 num_heads: 4 "
    "num_kv_heads: 2 context_length: 128 norm_eps: 1e-6 rope_theta: 5e5 "
    "tied_head: false rope_layout: HALVED qk_norm: NONE norm_placement: BEFORE "
    "rope_scaling { factor: 32 low_freq_factor: 1 high_freq_factor: 4 "
    "original_context_length: 64 }";

ModelConfig Model(const std::string& text) {
  ModelConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

std::string Path() { return testing::TempDir() + "/config.json"; }

absl::StatusOr<HfModel> Read(const std::string& text) {
  EXPECT_TRUE(WriteFileAtomically(Path(), text).ok());
  return ReadHfConfig(Path());
}

// kLlama with `changes` merged into it; null removes a field.
Json Changed(const std::string& changes) {
  Json json = Json::parse(kLlama);
  json.merge_patch(Json::parse(changes));
  return json;
}

void ExpectReads(const Json& json, const std::string& name,
                 const std::string& model) {
  const auto read = Read(json.dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->architecture->name, name);
  MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(Model(model), read->config)) << difference;
}

TEST(ConfigJsonTest, ReadsLlama3AsVersions4And5WriteIt) {
  ExpectReads(Json::parse(kLlama), "LlamaForCausalLM", kLlamaModel);
  Json v5 = Json::parse(kLlama);
  v5["rope_parameters"] = v5["rope_scaling"];
  v5["rope_parameters"]["rope_theta"] = v5["rope_theta"];
  v5.erase("rope_scaling");
  v5.erase("rope_theta");
  ExpectReads(v5, "LlamaForCausalLM", kLlamaModel);
  Json old = Json::parse(kLlama);  // version 4.42
  old["rope_scaling"]["type"] = "llama3";
  old["rope_scaling"].erase("rope_type");
  ExpectReads(old, "LlamaForCausalLM", kLlamaModel);
}

// As version 5 does.
TEST(ConfigJsonTest, ReadsAMixtureOfVersions4And5) {
  // The theta is beside the new object.
  Json json = Json::parse(kLlama);
  json["rope_parameters"] = json["rope_scaling"];
  json.erase("rope_scaling");
  ExpectReads(json, "LlamaForCausalLM", kLlamaModel);
  // rope_scaling comes before rope_parameters, also for the theta.
  json = Json::parse(kLlama);
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  ExpectReads(json, "LlamaForCausalLM", kLlamaModel);
  json["rope_scaling"]["rope_theta"] = 5e5;
  json["rope_theta"] = 1e4;
  ExpectReads(json, "LlamaForCausalLM", kLlamaModel);
}

TEST(ConfigJsonTest, NullArchitecturesAreAbsentOnes) {
  Json json = Json::parse(kLlama);
  json["architectures"] = nullptr;
  ExpectReads(json, "LlamaForCausalLM", kLlamaModel);
}

TEST(ConfigJsonTest, ReadsWindowsOfMistralAndQwen3) {
  const auto windows = [](const std::string& changes) {
    const auto read = Read(Changed(changes).dump());
    EXPECT_TRUE(read.ok()) << read.status();
    std::string text;
    for (const auto& window : read->config.attention_window()) {
      absl::StrAppend(&text, window.tokens(), " ");
    }
    return text;
  };
  const std::string mistral =
      R"("model_type": "mistral", "architectures": ["MistralForCausalLM"])";
  EXPECT_EQ(windows(absl::StrCat("{", mistral, R"(, "sliding_window": 7})")),
            "7 ");
  const std::string qwen3 =
      R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
          "head_dim": 16, "sliding_window": 7, )";
  EXPECT_EQ(windows(qwen3 + R"("use_sliding_window": false})"), "");
  EXPECT_EQ(
      windows(qwen3 + R"("use_sliding_window": true, "max_window_layers": 3})"),
      "0 0 0 7 ");
  EXPECT_EQ(windows(qwen3 + R"("use_sliding_window": true, "layer_types": [
          "sliding_attention", "full_attention",
          "sliding_attention", "full_attention"]})"),
            "7 0 ");
}

// null and absent differ only where transformers assumes a number.
TEST(ConfigJsonTest, MistralWithoutAWindowSaysSo) {
  Json json = Changed(
      R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"]})");
  EXPECT_THAT(std::string(Read(json.dump()).status().message()),
              HasSubstr("sliding_window must be given; is missing"));
  json["sliding_window"] = nullptr;
  const auto read = Read(json.dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->config.attention_window_size(), 0);
}

TEST(ConfigJsonTest, WhatIsWrittenIsReadBack) {
  const std::string sizes =
      "vocab_size: 300 d_model: 40 d_ff: 64 num_layers: 4 num_heads: 4 "
      "num_kv_heads: 2 head_dim: 16 context_length: 128 norm_eps: 1e-6 "
      "rope_theta: 5e5 tied_head: true rope_layout: HALVED ";
  for (const std::string fields :
       {"qk_norm: NONE norm_placement: BEFORE rope_scaling { factor: 8 "
        "low_freq_factor: 1 high_freq_factor: 4 original_context_length: 64 }",
        "qk_norm: NONE norm_placement: BEFORE attention_window { tokens: 9 }",
        "qk_norm: HEAD norm_placement: BEFORE",
        "qk_norm: HEAD norm_placement: BEFORE attention_window {} "
        "attention_window { tokens: 9 }",
        "qk_norm: PROJECTION norm_placement: AFTER"}) {
    const ModelConfig model = Model(sizes + fields);
    const HfArchitecture* const architecture = HfArchitectureFor(model).value();
    const Json json = HfConfigJson(*architecture, model, "bfloat16");
    EXPECT_EQ(json["torch_dtype"], "bfloat16");
    ExpectReads(json, std::string(architecture->name), sizes + fields);
  }
}

TEST(ConfigJsonTest, BadInputNamesFileAndField) {
  struct Bad {
    std::string changes, message;
  };
  for (const Bad& bad : std::vector<Bad>{
           {R"({"model_type": "gpt2"})",
            "model_type is \"gpt2\"; Tessera reads LlamaForCausalLM, Mistral"},
           {R"({"model_type": "gpt2"})", "learned positions, as GPT-2 has"},
           {R"({"model_type": 3})", "model_type must be a string; is 3"},
           {R"({"model_type": null})", "model_type must be a string; is miss"},
           {R"({"architectures": ["LlamaForSequenceClassification"]})",
            "architectures is [\"LlamaForSequenceClassification\"]; Tessera"},
           {R"({"model_type": "qwen3", "architectures": null})",
            "head_dim must be given; is missing"},
           {R"({"hidden_size": "32"})", "hidden_size must be a whole number"},
           {R"({"hidden_size": 32.5})", "hidden_size must be a whole number"},
           {R"({"hidden_size": null})", "hidden_size must be a whole number"},
           {R"({"hidden_size": -1})", "hidden_size must be a whole number"},
           {R"({"hidden_size": 33})", "hidden_size must be a multiple of"},
           {R"({"head_dim": 12})", "head_dim must be a multiple of 8"},
           {R"({"num_hidden_layers": 100000})",
            "num_hidden_layers must be at most 10000; is 100000"},
           {R"({"num_key_value_heads": 3})",
            "num_key_value_heads must divide num_heads"},
           {R"({"rms_norm_eps": "x"})", "rms_norm_eps must be a number"},
           {R"({"tie_word_embeddings": 1})",
            "tie_word_embeddings must be true or false; is 1"},
           {R"({"hidden_act": "gelu"})",
            "hidden_act must be \"silu\"; is \"gelu\""},
           {R"({"attention_bias": true})", "attention_bias must be false"},
           {R"({"mlp_bias": true})", "mlp_bias must be false; is true"},
           {R"({"partial_rotary_factor": 0.5})",
            "partial_rotary_factor must be 1; is 0.5"},
           {R"({"rope_scaling": {"partial_rotary_factor": 0.5}})",
            "rope_scaling.partial_rotary_factor must be 1; is 0.5"},
           {R"({"rope_scaling": null, "rope_parameters":
                {"rope_type": "default", "partial_rotary_factor": 0.5}})",
            "rope_parameters.partial_rotary_factor must be 1; is 0.5"},
           {R"({"quantization_config": {}})", "quantization_config must be"},
           {R"({"rope_scaling": {"rope_type": "yarn"}})",
            "rope_scaling.rope_type must be \"default\" or \"llama3\"; is"},
           {R"({"rope_scaling": {"factor": "8"}})",
            "rope_scaling.factor must be a number; is \"8\""},
           {R"({"rope_scaling": {"original_max_position_embeddings": null}})",
            "rope_scaling.original_max_position_embeddings must be a whole"},
           {R"({"rope_scaling": {"factor": 0.5}})", "must be >= 1; is 0.5"},
           {R"({"rope_scaling": 8})", "rope_scaling must be"},
           {R"({"model_type": "qwen3", "architectures": null, "head_dim": 8,
                "use_sliding_window": true, "sliding_window": 4,
                "layer_types": ["full_attention"]})",
            "layer_types must be an array of 4 strings"},
           {R"({"model_type": "mistral", "architectures": null,
                "sliding_window": 0})",
            "sliding_window must be >= 1, or null; is 0"}}) {
    const absl::Status refused = Read(Changed(bad.changes).dump()).status();
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat(Path(), ": ")))
        << bad.changes;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(bad.message));
  }
  EXPECT_THAT(std::string(Read("{").status().message()),
              HasSubstr("config.json is not JSON"));
  EXPECT_THAT(std::string(Read("[]").status().message()),
              HasSubstr("config.json must be a JSON object"));
}

}  // namespace
}  // namespace tessera
