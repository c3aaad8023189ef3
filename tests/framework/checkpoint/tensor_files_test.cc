#include "framework/checkpoint/tensor_files.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TensorSpec Bytes(const std::string& name, int64_t bytes) {
  return {name, StoredDtype::kU8, {bytes}};
}

// "FILE: TENSORS" of each file.
std::vector<std::string> Divided(std::vector<TensorSpec> tensors,
                                 uint64_t max_bytes) {
  const auto files =
      DivideIntoFiles("model.safetensors", std::move(tensors), max_bytes);
  EXPECT_TRUE(files.ok()) << files.status();
  std::vector<std::string> described;
  for (const TensorFile& file : *files) {
    described.push_back(absl::StrCat(file.name, ":"));
    uint64_t bytes = 0;
    for (const TensorSpec& tensor : file.tensors) {
      absl::StrAppend(&described.back(), " ", tensor.name);
      bytes += SizeBytes(tensor).value();
    }
    EXPECT_EQ(file.bytes, bytes);
  }
  return described;
}

TEST(DivideIntoFilesTest, FillsFilesInTheOrderOfTheNames) {
  const std::vector<TensorSpec> tensors = {Bytes("c", 2), Bytes("a", 3),
                                           Bytes("d", 9), Bytes("b", 3),
                                           Bytes("e", 0), Bytes("f", 1)};
  EXPECT_THAT(Divided(tensors, 18),
              ElementsAre("model.safetensors: a b c d e f"));
  EXPECT_THAT(Divided(tensors, 6),
              ElementsAre("model-00001-of-00004.safetensors: a b",
                          "model-00002-of-00004.safetensors: c",
                          // Larger than a file.
                          "model-00003-of-00004.safetensors: d",
                          "model-00004-of-00004.safetensors: e f"));
  EXPECT_THAT(Divided({}, 6), ElementsAre("model.safetensors:"));
  std::vector<TensorSpec> reversed(tensors.rbegin(), tensors.rend());
  EXPECT_EQ(Divided(reversed, 6), Divided(tensors, 6));
}

TEST(IndexTest, IsHuggingFacesAndIsParsed) {
  const auto files =
      DivideIntoFiles("model.safetensors", {Bytes("b", 3), Bytes("a", 3)}, 4)
          .value();
  EXPECT_EQ(IndexName("model.safetensors"), "model.safetensors.index.json");
  const std::string index = IndexOf(files);
  EXPECT_EQ(index, R"({
  "metadata": {
    "total_size": 6
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors"
  }
}
)");
  EXPECT_THAT(ParseIndex("i", index).value(),
              ElementsAre(Pair("a", "model-00001-of-00002.safetensors"),
                          Pair("b", "model-00002-of-00002.safetensors")));
}

TEST(IndexTest, WhatIsNoIndexIsRefused) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map": 1})",
                           R"({"weight_map": {"a": 1}})"}) {
    const absl::Status status = ParseIndex("x.index.json", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("x.index.json"));
  }
}

TEST(ShareFilesTest, EachFileHasOnePartyAndPartiesGetAboutAsManyBytes) {
  EXPECT_THAT(ShareFiles({5, 1}, 1), ElementsAre(0, 0));
  EXPECT_THAT(ShareFiles({3, 9, 4, 2}, 2), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(ShareFiles({7}, 3), ElementsAre(0));
  EXPECT_THAT(ShareFiles({}, 3), ElementsAre());
}

TEST(StoredTensorsTest, GetOtherNames) {
  const std::string path = testing::TempDir() + "/renamed.safetensors";
  std::remove(path.c_str());
  auto writer = SafetensorsWriter::Create(
                    path, {Bytes("a", 1), Bytes("b", 2), Bytes("c", 0)})
                    .value();
  ASSERT_TRUE(writer->Write("123").ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto file = SafetensorsFile::Open(path).value();
  const StoredTensors tensors(*file);
  const auto is_c = [](absl::string_view name) { return name == "c"; };
  const auto renamed = tensors.Renamed({{"a", "b"}, {"b", "a"}}, is_c);
  ASSERT_TRUE(renamed.ok()) << renamed.status();
  EXPECT_EQ(renamed->num_tensors(), 2);
  EXPECT_EQ(renamed->Find("a")->bytes, "23");
  EXPECT_EQ(renamed->Find("a")->spec, Bytes("a", 2));
  EXPECT_EQ(renamed->Find("b")->bytes, "1");
  EXPECT_EQ(renamed->Find("b")->path, path);
  EXPECT_THAT(
      std::string(tensors.Renamed({{"a", "b"}}, is_c).status().message()),
      HasSubstr(path + ": tensor b is not part of the model"));
}

}  // namespace
}  // namespace tessera
