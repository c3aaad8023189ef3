#include "framework/checkpoint/safetensors.h"

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FreshPath() {
  const testing::TestInfo* test =
      testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(test->test_suite_name(), ".", test->name());
  for (char& c : name) c = c == '/' ? '_' : c;
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  EXPECT_TRUE(RemoveTree(path).ok());
  return path;
}

void WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), bytes.size());
  ASSERT_TRUE(file.good());
}

// Bytes `first`, `first` + 1, ...
std::string Counting(int64_t size, int first = 0) {
  std::string bytes(size, '\0');
  for (int64_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(first + i);
  return bytes;
}

// A safetensors file around `json`, which may be invalid.
std::string WithHeader(absl::string_view json, absl::string_view data) {
  const uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return absl::StrCat(file, json, data);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenBytes(
    absl::string_view bytes) {
  const std::string path = FreshPath();
  WriteFile(path, bytes);
  return SafetensorsFile::Open(path);
}

// Writes `data` in pieces and returns the bytes of the file.
std::string Written(const std::vector<TensorSpec>& specs,
                    absl::string_view data, int64_t piece_bytes) {
  const std::string path = FreshPath();
  auto writer = SafetensorsWriter::Create(path, specs);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (int64_t at = 0; at < data.size(); at += piece_bytes) {
    const absl::Status status = (*writer)->Write(data.substr(at, piece_bytes));
    EXPECT_TRUE(status.ok()) << status;
  }
  const absl::Status status = (*writer)->Finish();
  EXPECT_TRUE(status.ok()) << status;
  return ReadFile(path).value();
}

std::vector<TensorSpec> MixedSpecs() {
  return {{"byte", StoredDtype::kU8, {3}},
          {"half", StoredDtype::kBF16, {2, 1}},
          {"none", StoredDtype::kF32, {0, 7}},
          {"double", StoredDtype::kF64, {1}},
          {"scalar", StoredDtype::kF32, {}}};
}
constexpr int64_t kMixedBytes = 3 + 4 + 0 + 8 + 4;

class SafetensorsDtypeTest : public testing::TestWithParam<int> {};

TEST_P(SafetensorsDtypeTest, BytesAreRestored) {
  const auto dtype = static_cast<StoredDtype>(GetParam());
  const TensorSpec spec = {"w", dtype, {3, 5}};
  const std::string data = Counting(15 * SizeBytes(dtype), 200);
  const auto file = OpenBytes(Written({spec}, data, 7));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 1);
  EXPECT_EQ((*file)->tensors()[0].spec, spec);
  EXPECT_EQ((*file)->Bytes((*file)->tensors()[0]), data);
}

INSTANTIATE_TEST_SUITE_P(
    AllDtypes, SafetensorsDtypeTest,
    testing::Range(0, static_cast<int>(StoredDtype::kF64) + 1),
    [](const auto& info) {
      return std::string(Name(static_cast<StoredDtype>(info.param)));
    });

TEST(SafetensorsWriterTest, WritesTheFormatByteForByte) {
  const std::string json =
      R"({"a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}})";
  ASSERT_EQ(json.size() % 8, 6);
  EXPECT_EQ(Written({{"a", StoredDtype::kI16, {2}}}, "wxyz", 4),
            WithHeader(json + "  ", "wxyz"));
}

TEST(SafetensorsWriterTest, AnEmptyFileIsAnEmptyObject) {
  EXPECT_EQ(Written({}, "", 1), WithHeader("{}      ", ""));
}

TEST(SafetensorsWriterTest, AlignsEveryTensorAndKeepsItsBytes) {
  const std::string data = Counting(kMixedBytes);
  const auto file = OpenBytes(Written(MixedSpecs(), data, 5));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header_bytes().size() % 8, 0);
  size_t at = 0;
  for (const TensorSpec& spec : MixedSpecs()) {
    const TensorEntry* entry = (*file)->Find(spec.name);
    ASSERT_NE(entry, nullptr) << spec.name;
    EXPECT_EQ(entry->spec, spec);
    EXPECT_EQ(entry->begin % SizeBytes(spec.dtype), 0) << spec.name;
    const absl::string_view bytes = (*file)->Bytes(*entry);
    EXPECT_EQ(bytes, data.substr(at, bytes.size())) << spec.name;
    at += bytes.size();
  }
  EXPECT_EQ(at, data.size());
  EXPECT_EQ((*file)->Find("absent"), nullptr);
}

TEST(SafetensorsWriterTest, PiecesOfAnySizeGiveTheSameFile) {
  const std::string data = Counting(kMixedBytes);
  const std::string whole = Written(MixedSpecs(), data, kMixedBytes);
  for (int64_t piece = 1; piece < kMixedBytes; ++piece) {
    EXPECT_EQ(Written(MixedSpecs(), data, piece), whole) << piece;
  }
}

TEST(SafetensorsWriterTest, ChecksumsMatchTheTensors) {
  const std::string path = FreshPath();
  auto writer = SafetensorsWriter::Create(
      path, {{"a", StoredDtype::kU8, {2}}, {"b", StoredDtype::kF32, {1}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write("a").ok());
  ASSERT_TRUE((*writer)->Write("abbbb").ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_THAT((*writer)->checksums(),
              ElementsAre(XXH3_64bits("aa", 2), XXH3_64bits("bbbb", 4)));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::string_view header = (*file)->header_bytes();
  EXPECT_EQ((*writer)->header_checksum(),
            XXH3_64bits(header.data(), header.size()));
  EXPECT_EQ((*writer)->size_bytes(), (*file)->size_bytes());
}

TEST(SafetensorsWriterTest, MetadataIsRestored) {
  const std::string path = FreshPath();
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"quote", "\"\n"}};
  auto writer = SafetensorsWriter::Create(path, {}, metadata);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata(), metadata);
}

TEST(SafetensorsWriterTest, RefusesBytesThatWereNotDeclared) {
  auto writer =
      SafetensorsWriter::Create(FreshPath(), {{"a", StoredDtype::kU8, {2}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::Status status = (*writer)->Write("abc");
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("1 bytes more"));
}

TEST(SafetensorsWriterTest, RefusesToFinishWithoutAllBytes) {
  auto writer =
      SafetensorsWriter::Create(FreshPath(), {{"a", StoredDtype::kU8, {2}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write("a").ok());
  const absl::Status status = (*writer)->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("'a' has 1 of its 2 bytes"));
}

struct BadSpecs {
  std::string name;
  std::vector<TensorSpec> specs;
  std::string message;
};

class SafetensorsBadSpecsTest : public testing::TestWithParam<BadSpecs> {};

TEST_P(SafetensorsBadSpecsTest, AreRefused) {
  const auto writer = SafetensorsWriter::Create(FreshPath(), GetParam().specs);
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(writer.status().message(), HasSubstr(GetParam().message));
}

constexpr int64_t kHuge = int64_t{1} << 62;

INSTANTIATE_TEST_SUITE_P(
    Writer, SafetensorsBadSpecsTest,
    testing::Values(
        BadSpecs{"Twice",
                 {{"a", StoredDtype::kU8, {1}}, {"a", StoredDtype::kU8, {1}}},
                 "'a' is reserved or occurs twice"},
        BadSpecs{
            "Reserved", {{"__metadata__", StoredDtype::kU8, {1}}}, "reserved"},
        BadSpecs{"Negative", {{"a", StoredDtype::kU8, {-1}}}, "negative"},
        BadSpecs{
            "TensorTooLarge", {{"a", StoredDtype::kF64, {kHuge}}}, "64 bits"},
        BadSpecs{"SumTooLarge",
                 {{"a", StoredDtype::kU16, {kHuge}},
                  {"b", StoredDtype::kU16, {kHuge}}},
                 "64 bits"},
        BadSpecs{"NotUtf8", {{"\xff", StoredDtype::kU8, {1}}}, "not UTF-8"}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsFileTest, EveryTruncationIsRefused) {
  const std::string good = Written(MixedSpecs(), Counting(kMixedBytes), 99);
  ASSERT_TRUE(OpenBytes(good).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    const auto file = OpenBytes(absl::string_view(good).substr(0, size));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_FALSE(OpenBytes(good + "x").ok());
}

// Whatever the header says, accepted tensors lie inside the file.
TEST(SafetensorsFileTest, AnyChangedHeaderByteStaysInsideTheFile) {
  const std::string good = Written(MixedSpecs(), Counting(kMixedBytes), 99);
  const size_t header_size = good.size() - kMixedBytes;
  for (size_t at = 0; at < header_size; ++at) {
    for (const char byte : {'\0', '0', '9', '{', '}', '"', ',', '\xff'}) {
      std::string changed = good;
      changed[at] = byte;
      const auto file = OpenBytes(changed);
      if (!file.ok()) continue;
      uint64_t covered = 0;
      for (const TensorEntry& entry : (*file)->tensors()) {
        covered += (*file)->Bytes(entry).size();
      }
      EXPECT_EQ(covered + (*file)->header_bytes().size(), good.size());
    }
  }
}

TEST(SafetensorsFileTest, ErrorsNameTheFile) {
  const std::string path = FreshPath();
  WriteFile(path, "short");
  EXPECT_THAT(SafetensorsFile::Open(path).status().message(),
              HasSubstr(path + ": has 5 bytes"));
  const auto absent = SafetensorsFile::Open(path + ".absent");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr(path + ".absent"));
}

TEST(SafetensorsFileTest, RefusesHeaderLengthsBeforeReading) {
  for (const uint64_t length :
       {kMaxSafetensorsHeaderBytes + 1, ~uint64_t{0}, uint64_t{3}}) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    const auto opened = OpenBytes(file + "{}");
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(opened.status().message(), HasSubstr(absl::StrCat(length)));
  }
}

struct BadHeader {
  std::string name;
  std::string json;
  std::string message;
  uint64_t data_bytes = 4;
};

class SafetensorsBadHeaderTest : public testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeaderTest, IsRefused) {
  const auto header =
      ParseSafetensorsHeader(GetParam().json, GetParam().data_bytes);
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(header.status().message(), HasSubstr(GetParam().message));
}

// The fields of tensor "a".
std::string A(absl::string_view fields) {
  return absl::StrCat("{\"a\":{", fields, "}}");
}

std::string Fields(absl::string_view dtype, absl::string_view shape,
                   absl::string_view offsets) {
  return absl::StrCat("\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                      "],\"data_offsets\":[", offsets, "]");
}

std::string Two(absl::string_view offsets_a, absl::string_view offsets_b) {
  return absl::StrCat("{\"a\":{", Fields("U8", "2", offsets_a), "},\"b\":{",
                      Fields("U8", "2", offsets_b), "}}");
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsBadHeaderTest,
    testing::Values(
        BadHeader{"Empty", "", "start with '{'"},
        BadHeader{"LeadingSpace", " {}", "start with '{'"},
        BadHeader{"Array", "[]", "start with '{'"},
        BadHeader{"Malformed", "{\"a\":}", "malformed JSON"},
        BadHeader{"Trailing", "{} x", "malformed JSON"},
        BadHeader{"NotUtf8", "{\"\xff\":{}}", "malformed JSON"},
        BadHeader{"DeepNesting", "{\"a\":" + std::string(100'000, '['),
                  "an array is not allowed here"},
        BadHeader{"TensorIsNumber", "{\"a\":1}",
                  "a number is not allowed here"},
        BadHeader{"TensorIsNull", "{\"a\":null}", "null is not allowed here"},
        BadHeader{"NameTwice",
                  "{\"a\":{" + Fields("U8", "0", "0,0") + "},\"a\":{" +
                      Fields("U8", "4", "0,4") + "}}",
                  "'a': the name occurs twice"},
        BadHeader{"FieldTwice", A("\"dtype\":\"U8\",\"dtype\":\"U8\""),
                  "field 'dtype' occurs twice"},
        BadHeader{"UnknownField", A("\"stride\":[1]"), "field 'stride'"},
        BadHeader{"NoDtype", A("\"shape\":[4],\"data_offsets\":[0,4]"),
                  "'dtype' is missing"},
        BadHeader{"NoShape", A("\"dtype\":\"U8\",\"data_offsets\":[0,4]"),
                  "'shape' is missing"},
        BadHeader{"NoOffsets", A("\"dtype\":\"U8\",\"shape\":[4]"),
                  "'data_offsets' is missing"},
        BadHeader{"UnknownDtype", A(Fields("F128", "4", "0,4")),
                  "unknown dtype 'F128'"},
        BadHeader{"NegativeExtent", A(Fields("U8", "-4", "0,4")),
                  "a negative number"},
        BadHeader{"FractionalExtent", A(Fields("U8", "4.0", "0,4")),
                  "not a 64-bit integer"},
        BadHeader{"ExtentBeyond63Bits",
                  A(Fields("U8", "9223372036854775808", "0,4")), "63 bits"},
        BadHeader{"ShapeOverflows",
                  A(Fields("U8", "4294967296,4294967296", "0,4")), "64 bits"},
        BadHeader{"DtypeOverflows",
                  A(Fields("F64", "4611686018427387904", "0,4")), "64 bits"},
        BadHeader{"ManyDimensions",
                  A(Fields("U8",
                           "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                           "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                           "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                           "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                           "1",
                           "0,1")),
                  "more than 64 dimensions"},
        BadHeader{"NestedShape", A("\"shape\":[[4]]"),
                  "an array is not allowed here"},
        BadHeader{"OneOffset", A(Fields("U8", "4", "0")), "has 1 numbers"},
        BadHeader{"ThreeOffsets", A(Fields("U8", "4", "0,4,8")),
                  "more than 2 numbers"},
        BadHeader{"OffsetsBackwards", A(Fields("U8", "4", "4,0")),
                  "run backwards"},
        BadHeader{"OffsetBeyond64Bits",
                  A(Fields("U8", "4", "0,18446744073709551616")),
                  "not a 64-bit integer"},
        BadHeader{"ShapeAgainstOffsets", A(Fields("F32", "4", "0,4")),
                  "its shape needs 16 bytes"},
        BadHeader{"Hole", Two("0,2", "3,5"), "'b' begins at byte 3", 5},
        BadHeader{"HoleAtStart", A(Fields("U8", "2", "2,4")),
                  "'a' begins at byte 2"},
        BadHeader{"Overlap", Two("0,2", "1,3"), "'b' begins at byte 1", 3},
        BadHeader{"SamePlace", Two("0,2", "0,2"), "begins at byte 0", 2},
        BadHeader{"TooLittleData", Two("0,2", "2,4"), "cut short", 3},
        BadHeader{"TooMuchData", Two("0,2", "2,4"), "there are 5", 5},
        BadHeader{"MetadataNumber", "{\"__metadata__\":{\"k\":1}}",
                  "a number is not allowed here", 0},
        BadHeader{"MetadataNested", "{\"__metadata__\":{\"k\":{}}}",
                  "an object is not allowed here", 0},
        BadHeader{"MetadataTwice", "{\"__metadata__\":{},\"__metadata__\":{}}",
                  "occurs twice", 0},
        BadHeader{"MetadataKeyTwice",
                  "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}",
                  "'k' occurs twice", 0}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsHeaderTest, AcceptsTensorsInAnyOrderAndTrailingSpace) {
  const auto header = ParseSafetensorsHeader(Two("2,4", "0,2") + "   ", 4);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[0].spec.name, "b");
  EXPECT_EQ(header->tensors[1].spec.name, "a");
}

}  // namespace
}  // namespace tessera
