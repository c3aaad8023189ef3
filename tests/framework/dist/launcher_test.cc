#include "framework/dist/launcher.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/exit_code.h"
#include "framework/base/monotonic_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  absl::StatusOr<int> exit_code;
  std::string out, err;
  absl::Duration elapsed;
};

// Runs `script` in a shell as each rank.
Outcome LaunchShell(const std::string& script, LaunchOptions options) {
  options.command = {"/bin/sh", "-c", script};
  char* out = nullptr;
  char* err = nullptr;
  size_t out_size = 0, err_size = 0;
  options.out = open_memstream(&out, &out_size);
  options.err = open_memstream(&err, &err_size);
  const absl::Time start = MonotonicNow();
  Outcome outcome = {Launch(options)};
  outcome.elapsed = MonotonicNow() - start;
  std::fclose(options.out);
  std::fclose(options.err);
  outcome.out.assign(out, out_size);
  outcome.err.assign(err, err_size);
  std::free(out);
  std::free(err);
  return outcome;
}

LaunchOptions Ranks(int nproc) {
  LaunchOptions options;
  options.nproc = nproc;
  return options;
}

TEST(LauncherTest, GivesEachRankItsVariables) {
  LaunchOptions options = Ranks(3);
  options.environment = {{"EXTRA", "yes"}};
  const Outcome outcome = LaunchShell(
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR "
      "$EXTRA; test $MASTER_PORT -gt 0 && test $OMP_NUM_THREADS -gt 0",
      options);
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[0] 0/3 0/3 127.0.0.1 yes\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[1] 1/3 1/3 127.0.0.1 yes\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[2] 2/3 2/3 127.0.0.1 yes\n"));
  EXPECT_EQ(outcome.err, "");
}

TEST(LauncherTest, GivesEachRunItsOwnSecret) {
  const std::string script = "echo $TESSERA_SECRET";
  const Outcome one = LaunchShell(script, Ranks(2));
  const Outcome two = LaunchShell(script, Ranks(2));
  const std::string secret = one.out.substr(4, one.out.find('\n') - 4);
  EXPECT_EQ(secret.size(), 64) << one.out;
  EXPECT_THAT(one.out, HasSubstr(absl::StrCat("[0] ", secret, "\n")));
  EXPECT_THAT(one.out, HasSubstr(absl::StrCat("[1] ", secret, "\n")));
  EXPECT_THAT(two.out, Not(HasSubstr(secret)));
}

TEST(LauncherTest, KeepsTheUsersNumberOfThreads) {
  const char* const before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  setenv("OMP_NUM_THREADS", "77", /*overwrite=*/1);
  const Outcome outcome = LaunchShell("echo $OMP_NUM_THREADS", Ranks(2));
  if (before == nullptr) {
    unsetenv("OMP_NUM_THREADS");
  } else {
    setenv("OMP_NUM_THREADS", kept.c_str(), /*overwrite=*/1);
  }
  EXPECT_THAT(outcome.out, HasSubstr("[0] 77\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[1] 77\n"));
}

TEST(LauncherTest, KeepsLinesWholeAndStreamsSeparate) {
  // 20,000 lines exceed the capacity of a pipe; the last has no newline.
  const Outcome outcome = LaunchShell(
      "seq 20000; printf part >&2; sleep 0.1; printf ial >&2", Ranks(2));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("[0] 20000\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[1] 20000\n"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 40000);
  EXPECT_THAT(outcome.err, HasSubstr("[0] partial\n"));
  EXPECT_THAT(outcome.err, HasSubstr("[1] partial\n"));
}

TEST(LauncherTest, EndsTheOthersWhenOneFails) {
  const Outcome outcome =
      LaunchShell("if [ $RANK = 1 ]; then exit 3; fi; sleep 60", Ranks(3));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 3 exited with code 3; ending "
                                     "the other ranks"));
  EXPECT_LT(outcome.elapsed, absl::Seconds(8));
}

// The exit code of signal 0, which is none.
TEST(LauncherTest, ExitCode128IsAFailure) {
  const Outcome outcome =
      LaunchShell("if [ $RANK = 1 ]; then exit 128; fi; sleep 20", Ranks(2));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 128);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 2 exited with code 128; "));
  EXPECT_LT(outcome.elapsed, absl::Seconds(8));
}

TEST(LauncherTest, ASuspendedRankEndsInItsOwnWay) {
  const Outcome outcome = LaunchShell(
      "trap 'echo saved; exit 143' TERM; if [ $RANK = 1 ]; then kill -STOP $$; "
      "while :; do sleep 0.1; done; fi; sleep 0.5; exit 3",
      Ranks(2));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("[1] saved\n"));
  EXPECT_LT(outcome.elapsed, absl::Seconds(8));
}

TEST(LauncherTest, ARankThatFailsBecauseOfAnotherIsNotTheCause) {
  // Rank 0 takes as long to exit as the rank that serves the store.
  const Outcome outcome = LaunchShell(
      absl::StrCat("if [ $RANK = 1 ]; then exit ", kPeerIsGoneExitCode,
                   "; fi; if [ $RANK = 2 ]; then sleep 60; fi; "
                   "sleep 1; echo full disk; exit 3"),
      Ranks(3));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("[0] full disk\n"));
  EXPECT_EQ(outcome.err,
            "launch: rank 0 of 3 exited with code 3; ending the other ranks\n");
}

TEST(LauncherTest, WaitsForTheCauseOnlyBriefly) {
  const std::string exit = absl::StrCat("exit ", kPeerIsGoneExitCode);
  const Outcome hangs = LaunchShell(
      absl::StrCat("if [ $RANK = 1 ]; then ", exit, "; fi; sleep 60"),
      Ranks(2));
  ASSERT_TRUE(hangs.exit_code.ok()) << hangs.exit_code.status();
  EXPECT_EQ(*hangs.exit_code, kPeerIsGoneExitCode);
  EXPECT_THAT(hangs.err, HasSubstr("rank 1 of 2 exited with code 4; ending"));
  EXPECT_LT(hangs.elapsed, absl::Seconds(8));
  const Outcome none = LaunchShell(exit, Ranks(2));
  ASSERT_TRUE(none.exit_code.ok()) << none.exit_code.status();
  EXPECT_EQ(*none.exit_code, kPeerIsGoneExitCode);
  EXPECT_THAT(none.err, HasSubstr("exited with code 4\n"));
}

TEST(LauncherTest, KillsRanksThatIgnoreTheRequest) {
  LaunchOptions options = Ranks(2);
  options.grace = absl::Seconds(1);
  const Outcome outcome = LaunchShell(
      "trap '' TERM; if [ $RANK = 0 ]; then sleep 0.5; kill -9 $$; fi; "
      "while :; do sleep 0.1; done",
      options);
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err,
              HasSubstr("rank 0 of 2 was killed by signal 9 (Killed)"));
  EXPECT_GE(outcome.elapsed, absl::Seconds(1));
  EXPECT_LT(outcome.elapsed, absl::Seconds(8));
}

TEST(LauncherTest, ForwardsSignals) {
  // Rank 0 signals the launcher; both ranks then end in their own way.
  for (const std::string name : {"INT", "TERM", "HUP", "USR1"}) {
    const Outcome outcome = LaunchShell(
        absl::StrCat("trap 'echo caught ", name, "; exit 0' ", name,
                     "; sleep 0.5; if [ $RANK = 0 ]; then kill -", name,
                     " $PPID; fi; while :; do sleep 0.1; done"),
        Ranks(2));
    ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
    EXPECT_EQ(*outcome.exit_code, 0) << name;
    EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat("[0] caught ", name)));
    EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat("[1] caught ", name)));
    EXPECT_THAT(outcome.err, HasSubstr("forwarding ")) << name;
  }
}

TEST(LauncherTest, RespectsNohup) {
  std::signal(SIGHUP, SIG_IGN);
  const Outcome outcome = LaunchShell(
      "trap 'echo ended; exit 9' TERM USR1; if [ $RANK = 0 ]; then "
      "kill -HUP $PPID; fi; sleep 0.5; echo survived",
      Ranks(2));
  std::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("[0] survived\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[1] survived\n"));
  EXPECT_EQ(outcome.err, "");
}

TEST(LauncherTest, ARepeatedSignalIsNotASecondOne) {
  // The signals of a terminal that closes, or of a supervisor that signals a
  // process group and its leader. A subshell sends them: rank 0 ends with the
  // first.
  const Outcome outcome = LaunchShell(
      "trap 'sleep 1.5; echo saved; exit 143' TERM; sleep 0.5; "
      "if [ $RANK = 0 ]; then (trap '' TERM; kill -TERM $PPID; sleep 0.2; "
      "kill -INT $PPID; kill -TERM $PPID) & fi; while :; do sleep 0.1; done",
      Ranks(2));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[1] saved\n"));
}

TEST(LauncherTest, RanksMayEndBySignalAtDifferentTimes) {
  // As `train` does, which saves first; this is not a failure of rank 0.
  const Outcome outcome = LaunchShell(
      "trap 'sleep $RANK; echo saved; exit 143' TERM; sleep 0.5; "
      "if [ $RANK = 0 ]; then kill -TERM $PPID; fi; "
      "while :; do sleep 0.1; done",
      Ranks(2));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 128 + SIGTERM);
  EXPECT_THAT(outcome.out, HasSubstr("[0] saved\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[1] saved\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("ending the other ranks")));
}

TEST(LauncherTest, ASecondSignalKills) {
  const Outcome outcome = LaunchShell(
      "trap '' INT TERM; sleep 0.5; if [ $RANK = 0 ]; then kill -INT $PPID; "
      "sleep 1.3; kill -INT $PPID; fi; while :; do sleep 0.1; done",
      Ranks(2));
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 128 + SIGKILL);
  EXPECT_LT(outcome.elapsed, absl::Seconds(8));
}

TEST(LauncherTest, EndsARunThatTakesTooLong) {
  LaunchOptions options = Ranks(2);
  options.timeout = absl::Seconds(1);
  const Outcome outcome = LaunchShell("sleep 60", options);
  ASSERT_TRUE(outcome.exit_code.ok()) << outcome.exit_code.status();
  EXPECT_EQ(*outcome.exit_code, 124);
  EXPECT_THAT(outcome.err, HasSubstr("did not finish within --timeout=1s"));
  EXPECT_LT(outcome.elapsed, absl::Seconds(8));
}

TEST(LauncherTest, NamesAProgramThatItCannotRun) {
  LaunchOptions options = Ranks(1);
  options.command = {"/no/such/program"};
  const absl::StatusOr<int> exit_code = Launch(options);
  EXPECT_EQ(exit_code.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(exit_code.status().message()),
              HasSubstr("cannot run /no/such/program: No such file"));
}

}  // namespace
}  // namespace tessera
