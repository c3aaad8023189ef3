#include "tests/testing/limited_printer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tessera::testing {
namespace {

using ::testing::TestInfo;
using ::testing::TestPartResult;
using ::testing::TestSuite;
using ::testing::UnitTest;

// Prints a line with the number of the tests that `counts`, and the first
// names.
void PrintNames(const UnitTest& all, const char* label, int count,
                bool (*counts)(const TestInfo&)) {
  if (count == 0) return;
  const int shown = std::min(count, LimitedPrinter::kShownFailures);
  std::printf("[  %s ] %d tests, ", label, count);
  std::printf(shown < count ? "of which the first %d are:\n" : "all %d:\n",
              shown);
  int left = shown;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count() && left > 0; ++j) {
      const TestInfo& test = *suite.GetTestInfo(j);
      if (!test.should_run() || !counts(test)) continue;
      std::printf("[  %s ] %s.%s\n", label, suite.name(), test.name());
      --left;
    }
  }
}

}  // namespace

void LimitedPrinter::Install() {
  ::testing::TestEventListeners& listeners =
      UnitTest::GetInstance()->listeners();
  ::testing::TestEventListener* const printer =
      listeners.Release(listeners.default_result_printer());
  if (printer == nullptr) return;
  listeners.Append(new LimitedPrinter(
      std::unique_ptr<::testing::TestEventListener>(printer)));
}

void LimitedPrinter::OnTestProgramStart(const UnitTest& all) {
  printer_->OnTestProgramStart(all);
}

void LimitedPrinter::OnTestIterationStart(const UnitTest& all, int i) {
  tests_ = failed_ = 0;
  printer_->OnTestIterationStart(all, i);
}

void LimitedPrinter::OnEnvironmentsSetUpStart(const UnitTest& all) {
  printer_->OnEnvironmentsSetUpStart(all);
}

void LimitedPrinter::OnEnvironmentsSetUpEnd(const UnitTest& all) {
  printer_->OnEnvironmentsSetUpEnd(all);
}

void LimitedPrinter::OnTestSuiteStart(const TestSuite& suite) {
  printer_->OnTestSuiteStart(suite);
#ifndef GTEST_REMOVE_LEGACY_TEST_CASEAPI_
  printer_->OnTestCaseStart(suite);
#endif
}

void LimitedPrinter::OnTestStart(const TestInfo& test) {
  test_ = &test;
  announced_ = has_failed_ = false;
  left_ = kShownBytes;
  ++tests_;
  if (ShowsPasses() || tests_ % kProgress == 0) Announce();
}

void LimitedPrinter::OnTestDisabled(const TestInfo& test) {
  if (ShowsPasses()) printer_->OnTestDisabled(test);
}

void LimitedPrinter::Announce() {
  if (announced_ || test_ == nullptr) return;
  printer_->OnTestStart(*test_);
  announced_ = true;
}

void LimitedPrinter::OnTestPartResult(const TestPartResult& result) {
  if (result.failed()) {
    PrintFailure(result);
  } else if (ShowsPasses()) {
    printer_->OnTestPartResult(result);
  }
}

void LimitedPrinter::PrintFailure(const TestPartResult& result) {
  if (test_ != nullptr && !std::exchange(has_failed_, true)) ++failed_;
  if (failed_ > kShownFailures || left_ <= 0) return;
  Announce();
  std::string message = result.message();
  const int size = static_cast<int>(message.size());
  if (size > left_) {
    message.resize(left_);
    message += "\n... (";
    message += std::to_string(size - left_);
    message += " bytes more; further failures of this test are not shown)";
  }
  left_ -= std::max(size, 1);
  printer_->OnTestPartResult(TestPartResult(result.type(), result.file_name(),
                                            result.line_number(),
                                            message.c_str()));
}

void LimitedPrinter::OnTestEnd(const TestInfo& test) {
  const bool shown = has_failed_ ? failed_ <= kShownFailures : ShowsPasses();
  if (shown) printer_->OnTestEnd(test);
  if (has_failed_ && failed_ == kShownFailures) {
    std::printf("%d tests have failed: the next failures are only counted\n",
                failed_);
  }
  test_ = nullptr;
  has_failed_ = false;
  left_ = kShownBytes;
}

void LimitedPrinter::OnTestSuiteEnd(const TestSuite& suite) {
  printer_->OnTestSuiteEnd(suite);
#ifndef GTEST_REMOVE_LEGACY_TEST_CASEAPI_
  printer_->OnTestCaseEnd(suite);
#endif
}

void LimitedPrinter::OnEnvironmentsTearDownStart(const UnitTest& all) {
  printer_->OnEnvironmentsTearDownStart(all);
}

void LimitedPrinter::OnEnvironmentsTearDownEnd(const UnitTest& all) {
  printer_->OnEnvironmentsTearDownEnd(all);
}

void LimitedPrinter::OnTestIterationEnd(const UnitTest& all, int i) {
  const int failed = all.failed_test_count();
  const int skipped = all.skipped_test_count();
  if (failed <= kShownFailures && skipped <= kShownFailures) {
    printer_->OnTestIterationEnd(all, i);  // lists all names
    return;
  }
  std::printf(
      "[==========] %d tests from %d test suites ran. (%lld ms total)\n",
      all.test_to_run_count(), all.test_suite_to_run_count(),
      static_cast<long long>(all.elapsed_time()));
  std::printf("[  PASSED  ] %d tests.\n", all.successful_test_count());
  PrintNames(all, "SKIPPED", skipped,
             [](const TestInfo& test) { return test.result()->Skipped(); });
  PrintNames(all, "FAILED ", failed,
             [](const TestInfo& test) { return test.result()->Failed(); });
  std::fflush(stdout);
}

void LimitedPrinter::OnTestProgramEnd(const UnitTest& all) {
  printer_->OnTestProgramEnd(all);
}

}  // namespace tessera::testing
