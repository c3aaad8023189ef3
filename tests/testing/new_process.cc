#include "tests/testing/new_process.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::testing {

void RunInNewProcess(const std::string& test) {
  // Without what Bazel and others tell this process: its shard, its files.
  const std::string command = absl::StrCat(
      "env -u TEST_SHARD_INDEX -u TEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX "
      "-u GTEST_TOTAL_SHARDS -u XML_OUTPUT_FILE -u TEST_PREMATURE_EXIT_FILE '",
      std::filesystem::read_symlink("/proc/self/exe").string(),
      "' --gtest_also_run_disabled_tests --gtest_filter=", test, " 2>&1");
  std::FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr) << command;
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), n);
  }
  const bool exited_well = pclose(pipe) == 0;
  const auto says = [&](const char* result) {
    return output.find(absl::StrCat(result, test)) != std::string::npos;
  };
  if (exited_well && says("[  SKIPPED ] ")) GTEST_SKIP() << output;
  EXPECT_TRUE(exited_well && says("[       OK ] ")) << output;
}

}  // namespace tessera::testing
