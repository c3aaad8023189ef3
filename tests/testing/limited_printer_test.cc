#include "tests/testing/limited_printer.h"

#include <stdio.h>
#include <sys/wait.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code = 0;
  std::string output;
};

// Runs many_tests without Bazel's variables, which would overwrite this test's
// report and select a shard of the cases.
Outcome RunMany(const std::string& variables, const std::string& flags = "") {
  Outcome outcome;
  FILE* pipe =
      popen(("env -i " + variables +
             " tests/testing/many_tests --gtest_color=no " + flags + " 2>&1")
                .c_str(),
            "r");
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

std::string NameOf(int test) {
  return std::string(60, 'n') + "_" + std::to_string(test);
}

constexpr size_t kLimit = 700 << 10;  // Bazel's is 1 MiB

TEST(LimitedPrinter, ABroadFailureFitsIntoBazelsLimit) {
  const Outcome all = RunMany("FAILING=6000");
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_LT(all.output.size(), kLimit);
  EXPECT_THAT(all.output, HasSubstr("first failure of 19\n"));
  EXPECT_THAT(all.output, Not(HasSubstr("first failure of 20\n")));
  EXPECT_THAT(all.output, HasSubstr("6000 tests, of which the first 20 are:"));
  EXPECT_THAT(all.output, HasSubstr("[  FAILED  ] Each/ManyTests.Case/" +
                                    NameOf(0) + "\n"));
  EXPECT_THAT(all.output, HasSubstr("[  PASSED  ] 0 tests."));
}

TEST(LimitedPrinter, FailuresAfterThousandsOfOtherTestsAreShown) {
  const Outcome late = RunMany("FAILING=3 SKIPPED=4000");
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_LT(late.output.size(), kLimit);
  for (const int test : {5997, 5998, 5999}) {
    EXPECT_THAT(late.output,
                HasSubstr("[ RUN      ] Each/ManyTests.Case/" + NameOf(test)));
    EXPECT_THAT(late.output,
                HasSubstr("first failure of " + std::to_string(test) + "\n"));
    EXPECT_THAT(late.output,
                HasSubstr("[  FAILED  ] Each/ManyTests.Case/" + NameOf(test)));
  }
  EXPECT_THAT(late.output, HasSubstr("[  FAILED  ] 3 tests, all 3:\n"));
  EXPECT_THAT(late.output, HasSubstr("[  PASSED  ] 1997 tests."));
  EXPECT_THAT(late.output,
              HasSubstr("[  SKIPPED ] 4000 tests, of which the first 20 are"));
}

TEST(LimitedPrinter, AProgramWithFewTestsPrintsLikeGoogleTest) {
  const std::string filter = "--gtest_filter='*_5990:*_5991:*_5998:*_5999'";
  const Outcome few = RunMany("FAILING=1 SKIPPED=1", filter);
  EXPECT_EQ(few.exit_code, 1);
  EXPECT_THAT(few.output,
              HasSubstr("[       OK ] Each/ManyTests.Case/" + NameOf(5990)));
  EXPECT_THAT(few.output, HasSubstr("for a reason that is about as long"));
  EXPECT_THAT(few.output, HasSubstr("[  PASSED  ] 2 tests."));
  EXPECT_THAT(few.output, HasSubstr("[  SKIPPED ] 1 test, listed below:\n"));
  EXPECT_THAT(few.output, HasSubstr("[  FAILED  ] 1 test, listed below:\n"));
}

TEST(LimitedPrinter, ARunWithoutFailuresPasses) {
  EXPECT_EQ(RunMany("FAILING=0").exit_code, 0);
}

}  // namespace
}  // namespace tessera::testing
