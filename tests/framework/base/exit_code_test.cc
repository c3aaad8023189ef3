#include "framework/base/exit_code.h"

#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/status/status.h"
#include "framework/base/log.h"
#include "framework/base/system_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ExitCodeTest, ClassifiesErrorsByWhoCanFixThem) {
  const std::pair<absl::Status, int> cases[] = {
      {absl::OkStatus(), 0},
      {absl::InvalidArgumentError("m"), 2},
      {absl::NotFoundError("m"), 2},
      {absl::AlreadyExistsError("m"), 2},
      {absl::PermissionDeniedError("m"), 2},
      {absl::FailedPreconditionError("m"), 2},
      {absl::OutOfRangeError("m"), 2},
      {absl::UnimplementedError("m"), 2},
      {absl::DataLossError("m"), 2},
      {absl::ResourceExhaustedError("m"), 3},
      {absl::InternalError("m"), 1},
      {absl::UnknownError("m"), 1},
      {absl::UnavailableError("m"), kPeerIsGoneExitCode},
      {absl::DeadlineExceededError("m"), 2},
      {absl::CancelledError("m"), 1},
      {SignalStatus(SIGINT), 130},
      {SignalStatus(SIGTERM), 143},
  };
  for (const auto& [status, code] : cases) {
    EXPECT_EQ(ExitCode(status), code) << status;
  }
}

TEST(SystemErrorTest, AFullDiskIsAUserErrorAndNotOutOfMemory) {
  const absl::Status full = SystemError(ENOSPC, "cannot write f");
  EXPECT_EQ(full.message(), "cannot write f: No space left on device");
  EXPECT_EQ(ExitCode(full), 2);
  EXPECT_EQ(ExitCode(SystemError(EDQUOT, "m")), 2);
  const absl::Status large = SystemError(EFBIG, "cannot write f");
  EXPECT_EQ(ExitCode(large), 2);
  EXPECT_NE(large.message().find("File too large; raise the limit on file sizes"
                                 " of the shell (ulimit -f)"),
            absl::string_view::npos);
  EXPECT_EQ(ExitCode(SystemError(ENOMEM, "m")), 3);
  EXPECT_EQ(SystemError(ENOENT, "m").code(), absl::StatusCode::kNotFound);
}

TEST(SystemErrorTest, WhatTheUserCanFixIsNeitherOutOfMemoryNorUnknown) {
  for (int error : {EMFILE, ENFILE, ELOOP}) {
    EXPECT_EQ(ExitCode(SystemError(error, "m")), 2) << error;
  }
  EXPECT_EQ(SystemError(ELOOP, "cannot open f").message(),
            "cannot open f: Too many levels of symbolic links");
}

TEST(ExitCodeTest, ReportsEveryLineWithoutTheCode) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportAndExitCode(absl::NotFoundError("no a\nno b")), 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: no a\nerror: no b\n");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportAndExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ExitCodeTest, ShortensALongValue) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportAndExitCode(absl::InvalidArgumentError(
                "RANK=" + std::string(10000, 'x') + "\x1b[2J is no number")),
            2);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(printed.size(), 3000u);
  EXPECT_THAT(printed, ::testing::StartsWith("error: RANK=xxx"));
  EXPECT_THAT(printed, ::testing::HasSubstr("xxx\\x1b[2J is no number ("));
}

TEST(ExitCodeTest, AQuietStatusKeepsItsCode) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportAndExitCode(QuietStatus(absl::NotFoundError("no a"))), 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(LogTest, AcceptsATrailingNewline) {
  ::testing::internal::CaptureStderr();
  LogError("out of memory\n\n  a table\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: out of memory\nerror: \nerror:   a table\n");
}

TEST(LogTest, StartsWithPrefixAndSeverity) {
  ::testing::internal::CaptureStderr();
  SetLogPrefix("[rank 1] ");
  LogInfo("one");
  LogWarning("two");
  SetLogPrefix("");
  LogInfo("three");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[rank 1] one\n[rank 1] warning: two\nthree\n");
}

}  // namespace
}  // namespace tessera
