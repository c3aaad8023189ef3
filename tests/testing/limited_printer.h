#ifndef TESTS_TESTING_LIMITED_PRINTER_H_
#define TESTS_TESTING_LIMITED_PRINTER_H_

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace tessera::testing {

// Prints what GoogleTest's own printer does, as far as it fits into a log of a
// few hundred KiB: Bazel shows nothing of a log beyond 1 MiB, which a suite of
// thousands of cases passes even when all of them pass.
//
// - Of the first kShownTests tests everything; of the others those that fail,
//   and every kProgress-th as it starts, so that a crash can be placed.
// - The failures of the first kShownFailures tests that fail, cut after
//   kShownBytes a test.
// - At the end the counts, and kShownFailures names each of failed and skipped
//   tests. The XML report has all of them.
class LimitedPrinter : public ::testing::TestEventListener {
 public:
  static constexpr int kShownTests = 1000, kProgress = 50;
  static constexpr int kShownFailures = 20;
  static constexpr int kShownBytes = 4096;

  explicit LimitedPrinter(std::unique_ptr<::testing::TestEventListener> printer)
      : printer_(std::move(printer)) {}

  // Replaces the printer of this program; after InitGoogleTest().
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
  // Prints that the current test runs, once.
  void Announce();
  void PrintFailure(const ::testing::TestPartResult& result);

  const std::unique_ptr<::testing::TestEventListener> printer_;
  int tests_ = 0;   // that have started
  int failed_ = 0;  // of them
  // The current test; null between tests.
  const ::testing::TestInfo* test_ = nullptr;
  bool announced_ = false, has_failed_ = false;
  int left_ = kShownBytes;  // of the current test's failures
};

}  // namespace tessera::testing

#endif  // TESTS_TESTING_LIMITED_PRINTER_H_
