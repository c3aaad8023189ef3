// This program links //framework/base:openmp_waiting, which starts it again.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}

TEST(OpenMpWaitingWorker, DISABLED_SpinsAsTheVariableSays) {
  EXPECT_EQ(Variable("GOMP_SPINCOUNT"), Variable("EXPECTED_SPINCOUNT"));
  // What `ps` and `pkill` call it.
  std::string name;
  std::ifstream("/proc/self/comm") >> name;
  EXPECT_EQ(name, std::string("openmp_waiting_test").substr(0, 15));
}

// Runs the test above in a new process with `variables` set.
bool PassesWith(const std::string& variables) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  return std::system(absl::StrCat("env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY ",
                                  "-u OMP_NUM_THREADS ", variables, " '",
                                  program,
                                  "' --gtest_also_run_disabled_tests "
                                  "--gtest_filter=OpenMpWaitingWorker.*")
                         .c_str()) == 0;
}

TEST(OpenMpWaitingTest, ThreadsSpinBriefly) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer starts later";
#endif
  EXPECT_TRUE(PassesWith("EXPECTED_SPINCOUNT=20000"));
  EXPECT_FALSE(PassesWith("EXPECTED_SPINCOUNT=999"));
}

TEST(OpenMpWaitingTest, OneThreadIsLeftAlone) {
  EXPECT_TRUE(PassesWith("EXPECTED_SPINCOUNT=unset OMP_NUM_THREADS=1"));
#ifndef __SANITIZE_ADDRESS__
  EXPECT_TRUE(PassesWith("EXPECTED_SPINCOUNT=20000 OMP_NUM_THREADS=12"));
#endif
}

TEST(OpenMpWaitingTest, TheUsersChoiceStands) {
  EXPECT_TRUE(PassesWith("EXPECTED_SPINCOUNT=7 GOMP_SPINCOUNT=7"));
  EXPECT_TRUE(PassesWith("EXPECTED_SPINCOUNT=unset OMP_WAIT_POLICY=active"));
}

}  // namespace
}  // namespace tessera
