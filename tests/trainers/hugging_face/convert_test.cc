#include "trainers/hugging_face/convert.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "models/transformer_lm.h"
#include "nlohmann/json.hpp"
#include "trainers/hugging_face/hf_folder.h"
#include "trainers/run/model_run_config.h"
#include "trainers/run/run_folder.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kSizes[] =
    "vocab_size: 50 num_layers: 2 d_model: 32 num_heads: 4 num_kv_heads: 2 "
    "d_ff: 24 context_length: 16 ";
constexpr char kHalved[] = "rope_layout: HALVED ";

class ConvertTest : public testing::Test {
 protected:
  ConvertTest() : folder_(testing::TempDir() + "/convert/") {
    RemoveTree(folder_).IgnoreError();
    EXPECT_TRUE(MakeDirectories(folder_).ok());
  }

  // Writes a model folder of ours. The values of tensor n count up from n,
  // times `scale`; the head equals the embedding. The latter's are 0 if its
  // dtype, `embedding`, is not F32.
  std::string Ours(const std::string& fields, float scale = 1,
                   StoredDtype embedding = StoredDtype::kF32) {
    const std::string ours = folder_ + "ours";
    EXPECT_TRUE(RemoveTree(ours).ok());
    EXPECT_TRUE(MakeDirectories(ours).ok());
    const std::string text = absl::StrCat("model { ", kSizes, fields, " }");
    EXPECT_TRUE(WriteFileAtomically(ours + "/config.pbtxt", text).ok());
    RunConfig config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
    std::vector<TensorSpec> specs;
    const auto blocks = LmParameters(ModelShapeOf(config.model()), {}).value();
    for (const ParameterBlockSpec& block : blocks) {
      for (const ParameterSpec& parameter : block.members) {
        specs.push_back({parameter.name,
                         specs.empty() ? embedding : StoredDtype::kF32,
                         parameter.shape});
      }
    }
    auto file =
        SafetensorsWriter::Create(ours + "/model.safetensors", specs).value();
    for (size_t n = 0; n < specs.size(); ++n) {
      std::vector<float> values(SizeBytes(specs[n]).value() / sizeof(float));
      const size_t first = specs[n].name == "lm_head.weight" ? 0 : n;
      if (specs[n].dtype == StoredDtype::kF32) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = scale * (first + i);
        }
      }
      EXPECT_TRUE(file->Write({reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(float)})
                      .ok());
    }
    EXPECT_TRUE(file->Finish().ok());
    return ours;
  }

  // Exports `from` to "hf".
  absl::Status Export(const std::string& from, ConvertOptions options = {}) {
    const auto checkpoint = OpenModel(from).value();
    return ExportModel(*checkpoint, ModelRunConfig(*checkpoint)->model(),
                       folder_ + "hf", options);
  }
  // Imports "hf" to "back".
  absl::Status Import() {
    const auto opened = OpenHfFolder(folder_ + "hf");
    if (!opened.ok()) return opened.status();
    return ImportModel(**opened, ModelRunConfig(**opened)->model(),
                       folder_ + "back", {});
  }

  std::vector<std::string> Names(const std::string& folder) {
    return ListDirectory(folder_ + folder).value();
  }
  Json ReadJson(const std::string& name) {
    return Json::parse(ReadFile(folder_ + name).value());
  }
  void WriteJson(const std::string& name, const Json& json) {
    EXPECT_TRUE(WriteFileAtomically(folder_ + name, json.dump()).ok());
  }

  const std::string folder_;
};

std::vector<float> Values(const SafetensorsFile& file,
                          const std::string& name) {
  const absl::string_view bytes = file.Bytes(*file.Find(name));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(ConvertTest, InterleavedHeadsBecomeHalved) {
  ASSERT_TRUE(Export(Ours("qk_norm: HEAD")).ok());
  EXPECT_THAT(Names("hf"), ElementsAre("config.json", "generation_config.json",
                                       "model.safetensors"));
  const auto file =
      SafetensorsFile::Open(folder_ + "hf/model.safetensors").value();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  const std::vector<int> order = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto gain = Values(*file, "model.layers.1.self_attn.q_norm.weight");
  const auto keys = Values(*file, "model.layers.1.self_attn.k_proj.weight");
  const auto values = Values(*file, "model.layers.1.self_attn.v_proj.weight");
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < 8; ++row) {
      EXPECT_EQ(gain[row], gain[0] + order[row]);
      for (const int column : {0, 31}) {
        const int at = (head * 8 + row) * 32 + column;
        EXPECT_EQ(keys[at], keys[0] + (head * 8 + order[row]) * 32 + column);
        EXPECT_EQ(values[at], values[0] + at);
      }
    }
  }
}

TEST_F(ConvertTest, ARoundTripIsExactAlsoInSeveralFiles) {
  for (const char* fields : {"",
                             "qk_norm: PROJECTION norm_placement: AFTER "
                             "tied_head: true head_dim: 16"}) {
    const std::string ours = Ours(absl::StrCat(kHalved, fields));
    ASSERT_TRUE(Export(ours, {.max_file_bytes = 10'000}).ok());
    EXPECT_THAT(Names("hf"), Contains("model.safetensors.index.json"));
    EXPECT_GT(Names("hf").size(), 6);
    const absl::Status imported = Import();
    ASSERT_TRUE(imported.ok()) << imported;
    EXPECT_THAT(Names("back"),
                ElementsAre("config.pbtxt", "generation_config.json",
                            "model.safetensors"));
    const auto before = OpenModel(ours).value();
    const auto after = OpenModel(folder_ + "back").value();
    const StoredTensors& expected = *before->Tensors(kModelFile).value();
    const StoredTensors& got = *after->Tensors(kModelFile).value();
    EXPECT_EQ(got.num_tensors(), expected.num_tensors());
    const auto file =
        SafetensorsFile::Open(ours + "/model.safetensors").value();
    for (const TensorEntry& tensor : file->tensors()) {
      const std::string& name = tensor.spec.name;
      EXPECT_EQ(got.Find(name)->bytes, expected.Find(name)->bytes) << name;
    }
    // The index of theirs, with our names.
    EXPECT_EQ(OpenModel(folder_ + "hf").value()->config_text(),
              after->config_text());
    EXPECT_TRUE(RemoveTree(folder_).ok());
  }
}

TEST_F(ConvertTest, ATokenizerOfTransformersGoesAlong) {
  const std::string ours = Ours(kHalved);
  const std::string tokenizer =
      ReadFile("tests/framework/data/tokenize/fixtures/gpt2.json").value();
  ASSERT_TRUE(WriteFileAtomically(ours + "/tokenizer.json", tokenizer).ok());
  ASSERT_TRUE(Export(ours).ok());
  EXPECT_EQ(ReadJson("hf/tokenizer.json"), Json::parse(tokenizer));
  EXPECT_EQ(ReadJson("hf/generation_config.json")["eos_token_id"], 0);
  const Json made = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"model_max_length", 16},
                     {"eos_token", "<|endoftext|>"}};
  EXPECT_EQ(ReadJson("hf/tokenizer_config.json"), made);
  const std::string theirs = R"({"chat_template": "{{ x }}"})";
  const std::vector<std::string> beside = {"tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "chat_template.jinja"};
  for (const std::string& name : beside) {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "hf/" + name, theirs).ok());
  }
  ASSERT_TRUE(Import().ok());
  EXPECT_EQ(ReadJson("back/tokenizer.json"), Json::parse(tokenizer));
  ASSERT_TRUE(RemoveTree(folder_ + "hf").ok());
  ASSERT_TRUE(Export(folder_ + "back").ok());
  for (const std::string& name : beside) {
    EXPECT_EQ(ReadFile(folder_ + "back/" + name).value(), theirs);
    EXPECT_EQ(ReadFile(folder_ + "hf/" + name).value(), theirs);
  }

  // A tokenizer that only transformers reads, then one that nobody reads.
  const std::string other = R"({"model":{"type":"Unigram"}})";
  ASSERT_TRUE(WriteFileAtomically(ours + "/tokenizer.json", other).ok());
  ASSERT_TRUE(RemoveTree(folder_ + "hf").ok());
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Export(ours).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("the tokenizer is copied, but generate"),
                    HasSubstr("pre_tokenizer must be ByteLevel")));
  EXPECT_EQ(ReadJson("hf/tokenizer.json"), Json::parse(other));
  EXPECT_EQ(ReadJson("hf/generation_config.json")["eos_token_id"], Json());
  ASSERT_TRUE(WriteFileAtomically(folder_ + "hf/tokenizer.json", "{").ok());
  EXPECT_THAT(std::string(OpenHfFolder(folder_ + "hf").status().message()),
              HasSubstr("hf/tokenizer.json is not JSON"));
}

// As from a checkpoint of a run, which has only the tokenizer.json.
TEST_F(ConvertTest, TheOneTokenBeforeATextGoesAlong) {
  const std::string ours = Ours(kHalved);
  Json tokenizer = Json::parse(
      ReadFile("tests/framework/data/tokenize/fixtures/llama3.json").value());
  Json& ids = tokenizer["post_processor"]["processors"][1]["special_tokens"]
                       ["<|endoftext|>"]["ids"];
  const auto export_with = [&](const Json& begin) {
    ids = begin;
    WriteJson("ours/tokenizer.json", tokenizer);
    EXPECT_TRUE(RemoveTree(folder_ + "hf").ok());
    EXPECT_TRUE(Export(ours).ok());
  };
  export_with({704});
  EXPECT_EQ(ReadJson("hf/config.json")["bos_token_id"], 704);
  EXPECT_EQ(ReadJson("hf/generation_config.json")["bos_token_id"], 704);
  EXPECT_EQ(ReadJson("hf/generation_config.json")["eos_token_id"], 0);
  EXPECT_EQ(ReadJson("hf/tokenizer_config.json")["bos_token"], "<|im_start|>");
  EXPECT_EQ(ReadJson("hf/tokenizer_config.json")["eos_token"], "<|endoftext|>");
  // Two are not what transformers means by bos_token.
  export_with({704, 705});
  EXPECT_EQ(ReadJson("hf/config.json")["bos_token_id"], Json());
  EXPECT_FALSE(ReadJson("hf/tokenizer_config.json").contains("bos_token"));
  // What the folder says comes first.
  WriteJson("ours/generation_config.json", {{"bos_token_id", 1}});
  export_with({704});
  EXPECT_EQ(ReadJson("hf/generation_config.json")["bos_token_id"], 1);
}

TEST_F(ConvertTest, TheEndsOfATextGoAlong) {
  const std::string ours = Ours(kHalved);
  const std::string file = "generation_config.json";
  const Json ends = {
      {"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"top_p", 0.9}};
  ASSERT_TRUE(WriteFileAtomically(ours + "/" + file, ends.dump()).ok());
  ASSERT_TRUE(Export(ours).ok());
  EXPECT_EQ(ReadJson("hf/" + file), ends);
  EXPECT_EQ(ReadJson("hf/config.json")["eos_token_id"], Json({2, 3}));
  EXPECT_EQ(ReadJson("hf/config.json")["bos_token_id"], 1);
  EXPECT_EQ(ReadJson("hf/config.json")["pad_token_id"], Json());
  ASSERT_TRUE(Import().ok());
  EXPECT_EQ(ReadJson("back/" + file), ends);
  // Without the file, config.json says it.
  ASSERT_TRUE(RemoveTree(folder_ + "hf/" + file).ok());
  ASSERT_TRUE(RemoveTree(folder_ + "back").ok());
  ASSERT_TRUE(Import().ok());
  EXPECT_EQ(ReadJson("back/" + file)["eos_token_id"], Json({2, 3}));
  // What is not a token id is refused before anything is written.
  ASSERT_TRUE(
      WriteFileAtomically(folder_ + "hf/" + file, R"({"eos_token_id": -1})")
          .ok());
  ASSERT_TRUE(RemoveTree(folder_ + "back").ok());
  EXPECT_THAT(std::string(Import().message()),
              HasSubstr("hf/generation_config.json: eos_token_id must be a "
                        "token id, a list of token ids or null; is -1"));
  EXPECT_FALSE(FileExists(folder_ + "back"));
}

TEST_F(ConvertTest, WeightsAreRoundedToTheDtype) {
  const std::string ours = Ours(kHalved, 1.0f / 3);
  ASSERT_TRUE(Export(ours, {.dtype = StoredDtype::kBF16}).ok());
  EXPECT_EQ(ReadJson("hf/config.json")["torch_dtype"], "bfloat16");
  const auto file =
      SafetensorsFile::Open(folder_ + "hf/model.safetensors").value();
  const TensorEntry& entry = *file->Find("lm_head.weight");
  EXPECT_EQ(entry.spec.dtype, StoredDtype::kBF16);
  uint16_t value;
  std::memcpy(&value, file->Bytes(entry).data() + 2, 2);
  EXPECT_EQ(value, 0x3EAB);  // 1/3
}

TEST_F(ConvertTest, TheDtypeOfAMixtureIsTheWidest) {
  ASSERT_TRUE(Export(Ours(kHalved, 1, StoredDtype::kBF16)).ok());
  EXPECT_EQ(ReadJson("hf/config.json")["torch_dtype"], "float32");
  const auto file =
      SafetensorsFile::Open(folder_ + "hf/model.safetensors").value();
  EXPECT_EQ(file->Find("model.embed_tokens.weight")->spec.dtype,
            StoredDtype::kBF16);
}

TEST_F(ConvertTest, ValuesBeyondADtypeAreRefusedAndLeaveNothing) {
  const absl::Status refused =
      Export(Ours(kHalved, 1000), {.dtype = StoredDtype::kF16});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has values beyond the range of F16; choose another"));
  EXPECT_THAT(Names(""), ElementsAre("ours"));
}

TEST_F(ConvertTest, WhatCannotBeExpressedOrStoppedLeavesNothing) {
  EXPECT_EQ(Export(Ours("attention_sinks: true")).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::IsCancelled(Export(
      Ours(kHalved), {.check_stop = [] { return absl::CancelledError(); }})));
  EXPECT_THAT(Names(""), ElementsAre("ours"));
  ASSERT_TRUE(Export(folder_ + "ours").ok());
  EXPECT_EQ(Export(folder_ + "ours").code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ConvertTest, AConfigOfOtherWeightsIsRefused) {
  const std::string ours = Ours(kHalved);
  ASSERT_TRUE(
      WriteFileAtomically(ours + "/config.pbtxt",
                          absl::StrCat("model { ", kSizes, "tied_head: true ",
                                       "head_dim: 16 rope_layout: HALVED }"))
          .ok());
  const absl::Status refused = Export(ours);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("layers.0.attn.q_proj.weight has another shape; "));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("ours/config.pbtxt asks for floats [64, 32]"));
}

TEST_F(ConvertTest, DamagedFoldersAreRefusedByFileAndTensor) {
  ASSERT_TRUE(Export(Ours(kHalved), {.max_file_bytes = 10'000}).ok());
  const std::string index = "hf/model.safetensors.index.json";
  const auto expect = [&](const std::string& message) {
    const absl::Status refused = Import();
    EXPECT_THAT(std::string(refused.message()), HasSubstr(message));
    EXPECT_THAT(Names(""), ElementsAre("hf", "ours"));
  };
  const Json config = ReadJson("hf/config.json");
  Json changed = config;
  changed["intermediate_size"] = 25;
  WriteJson("hf/config.json", changed);
  expect(
      ".safetensors: tensor model.layers.0.mlp.gate_proj.weight is "
      "[24, 32]; config.json asks for [25, 32]");
  changed = config;
  changed["num_hidden_layers"] = 3;
  WriteJson("hf/config.json", changed);
  expect("index.json has no tensor model.layers.2.input_layernorm.weight");
  changed["num_hidden_layers"] = 1;
  WriteJson("hf/config.json", changed);
  expect("is not part of the model");
  WriteJson("hf/config.json", config);
  // A tied head may be stored, too; here it is equal.
  changed = config;
  changed["tie_word_embeddings"] = true;
  WriteJson("hf/config.json", changed);
  EXPECT_TRUE(OpenHfFolder(folder_ + "hf").ok());
  WriteJson("hf/config.json", config);
  const std::string shard =
      ReadJson(index)["weight_map"]["model.norm.weight"].get<std::string>();
  ASSERT_TRUE(RemoveTree(folder_ + "hf/" + shard).ok());
  expect("cannot open " + folder_ + "hf/" + shard);
  ASSERT_TRUE(RemoveTree(folder_ + index).ok());
  expect("hf has neither model.safetensors nor model.safetensors.index.json");
}

// transformers does not tie it either.
TEST_F(ConvertTest, ATiedHeadThatDiffersIsRefused) {
  ASSERT_TRUE(Export(Ours(kHalved)).ok());
  Json config = ReadJson("hf/config.json");
  config["tie_word_embeddings"] = true;
  WriteJson("hf/config.json", config);
  const std::string path = folder_ + "hf/model.safetensors";
  size_t offset;
  {
    const auto file = SafetensorsFile::Open(path).value();
    offset = file->Bytes(*file->Find("lm_head.weight")).data() -
             file->Bytes(file->tensors()[0]).data();
  }
  std::string bytes = ReadFile(path).value();
  uint64_t header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes[sizeof(header) + header + offset] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  EXPECT_THAT(std::string(Import().message()),
              HasSubstr("lm_head.weight differs from the embedding, but "
                        "config.json has tie_word_embeddings: true"));
}

TEST_F(ConvertTest, WeightsThatAreNotFloatsAreRefused) {
  ASSERT_TRUE(Export(Ours(kHalved)).ok());
  const std::string path = folder_ + "hf/model.safetensors";
  std::string bytes = ReadFile(path).value();
  const size_t dtype = bytes.find("\"F32\"", bytes.find("\"lm_head.weight\""));
  bytes.replace(dtype, 5, "\"I32\"");
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  EXPECT_THAT(std::string(Import().message()),
              HasSubstr("lm_head.weight is I32; "));
}

}  // namespace
}  // namespace tessera
