#include "tests/framework/data/data_test_util.h"

#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"

namespace tessera::testing {

std::string TestPath(absl::string_view name) {
  static std::string* const last = new std::string;
  const ::testing::TestInfo& test =
      *::testing::UnitTest::GetInstance()->current_test_info();
  std::string folder = absl::StrCat(test.test_suite_name(), ".", test.name());
  for (char& c : folder) {
    if (c == '/') c = '_';
  }
  folder = absl::StrCat(::testing::TempDir(), "/", folder);
  if (folder != *last) {
    *last = folder;
    TESSERA_CHECK(RemoveTree(folder).ok() && MakeDirectories(folder).ok());
  }
  return absl::StrCat(folder, "/", name);
}

void Write(const std::string& path, absl::string_view contents) {
  std::ofstream file(path, std::ios::binary);
  file << contents;
  TESSERA_CHECK(file.flush().good(), path);
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TESSERA_CHECK(file.good(), path);
  std::stringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

void FlipByte(const std::string& path, size_t offset) {
  std::string contents = Read(path);
  contents.at(offset) ^= 0x10;
  Write(path, contents);
}

std::string CppText(int lines, uint64_t seed) {
  static constexpr const char* kNames[] = {
      "tensor", "gradient", "stream", "index", "SizeOf", "buffer_", "kernel"};
  std::mt19937_64 random(seed);
  const auto name = [&] { return kNames[random() % 7]; };
  std::string text = "// A made-up file.\n#include <vector>\n\n";
  for (int i = 0; i < lines; ++i) {
    const std::string indent(2 * (random() % 5), ' ');
    switch (random() % 4) {
      case 0:
        absl::StrAppend(&text, indent, "int ", name(), " = ", name(), "(",
                        random() % 100, ");\n");
        break;
      case 1:
        absl::StrAppend(&text, indent, "if (", name(), "->", name(), ") {\n");
        break;
      case 2:
        absl::StrAppend(&text, indent, "// the ", name(), " of the ", name(),
                        "\n");
        break;
      default:
        absl::StrAppend(&text, indent, "return std::move(", name(), ");\n\n");
    }
  }
  return text;
}

Filled Fill(const DataSource& source, const BatchRequest& request) {
  Filled filled;
  filled.ids.resize(request.share() * source.context_length());
  filled.targets.resize(filled.ids.size());
  if (source.separate_documents()) filled.positions.resize(filled.ids.size());
  const absl::StatusOr<int64_t> valid = source.Fill(
      request, absl::MakeSpan(filled.ids), absl::MakeSpan(filled.targets),
      absl::MakeSpan(filled.positions));
  EXPECT_THAT(valid, IsOk());
  filled.valid_targets = *valid;
  return filled;
}

}  // namespace tessera::testing
