#ifndef TESTS_TESTING_LIMITED_PRINTER_H_
#define TESTS_TESTING_LIMITED_PRINTER_H_

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace tessera::testing {

// Prints like GoogleTest's own printer, but limits the log to a few hundred
// KiB. Bazel hides logs above 1 MiB, and a suite of thousands of cases exceeds
// that even if all of them pass. Prints
//   - everything of the first kShownTests tests; of the others the failures,
//   and
//     every kProgress-th name when it starts, to locate a crash,
//   - the first kShownFailures failed tests, at most kShownBytes of each,
//   - the counts at the end, and up to kShownFailures names each of failed and
//     skipped tests. The XML report has all of them.
class LimitedPrinter : public ::testing::TestEventListener {
 public:
  static constexpr int kShownTests = 1000, kProgress = 50;
  static constexpr int kShownFailures = 20;
  static constexpr int kShownBytes = 4096;

  explicit LimitedPrinter(std::unique_ptr<::testing::TestEventListener> printer)
      : printer_(std::move(printer)) {}

  // Replaces the program's printer. Call it after InitGoogleTest().
  static void Install();

  void OnTestProgramStart(const ::testing::UnitTest& all) override;
  void OnTestIterationStart(const ::testing::UnitTest& all, int i) override;
  void OnEnvironmentsSetUpStart(const ::testing::UnitTest& all) override;
  void OnEnvironmentsSetUpEnd(const ::testing::UnitTest& all) override;
  void OnTestSuiteStart(const ::testing::TestSuite& suite) override;
  void OnTestStart(const ::testing::TestInfo& test) override;
  void OnTestDisabled(const ::testing::TestInfo& test) override;
  void OnTestPartResult(const ::testing::TestPartResult& result) override;
  void OnTestEnd(const ::testing::TestInfo& test) override;
  void OnTestSuiteEnd(const ::testing::TestSuite& suite) override;
  void OnEnvironmentsTearDownStart(const ::testing::UnitTest& all) override;
  void OnEnvironmentsTearDownEnd(const ::testing::UnitTest& all) override;
  void OnTestIterationEnd(const ::testing::UnitTest& all, int i) override;
  void OnTestProgramEnd(const ::testing::UnitTest& all) override;

 private:
  bool ShowsPasses() const { return tests_ <= kShownTests; }
  // Prints once that the current test runs.
  void Announce();
  void PrintFailure(const ::testing::TestPartResult& result);

  const std::unique_ptr<::testing::TestEventListener> printer_;
  int tests_ = 0;   // number of started tests
  int failed_ = 0;  // number of failed tests
  // The current test; null between tests.
  const ::testing::TestInfo* test_ = nullptr;
  bool announced_ = false, has_failed_ = false;
  int left_ = kShownBytes;  // bytes left for the current test
};

}  // namespace tessera::testing

#endif  // TESTS_TESTING_LIMITED_PRINTER_H_
