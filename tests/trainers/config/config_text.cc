#include "tests/trainers/config/config_text.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "gtest/gtest.h"
#include "trainers/config/config_loader.h"

namespace tessera {

std::string FileName(absl::string_view name) {
  return absl::StrCat(name, "_", ::getpid(), ".pbtxt");
}

std::string WriteConfig(absl::string_view text, absl::string_view name) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/", FileName(name));
  EXPECT_TRUE(WriteFileAtomically(path, text).ok());
  return path;
}

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

}  // namespace tessera
