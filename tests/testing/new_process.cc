#include "tests/testing/new_process.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::testing {

void RunInNewProcess(const std::string& test) {
  // Without what Bazel tells this process: its shard and its report.
  const std::string command = absl::StrCat(
      "env -u TEST_SHARD_INDEX -u TEST_TOTAL_SHARDS -u XML_OUTPUT_FILE '",
      std::filesystem::read_symlink("/proc/self/exe").string(),
      "' --gtest_also_run_disabled_tests --gtest_filter=", test, " 2>&1");
  std::FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr) << command;
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), n);
  }
  EXPECT_EQ(pclose(pipe), 0) << output;
  if (output.find(absl::StrCat("[  SKIPPED ] ", test)) != std::string::npos) {
    GTEST_SKIP() << output;
  }
  EXPECT_THAT(output,
              ::testing::HasSubstr(absl::StrCat("[       OK ] ", test)));
}

}  // namespace tessera::testing
