#include "trainers/run/stop_signal.h"

#include <csignal>
#include <cstdlib>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr absl::Duration kOverASecond = absl::Milliseconds(1050);

TEST(StopSignalTest, KeepsTheFirstSignal) {
  for (const int signo : kStopSignals) {
    const StopSignal stop;
    EXPECT_EQ(stop.received(), 0);
    std::raise(signo);
    std::raise(SIGHUP);
    EXPECT_EQ(stop.received(), signo);
  }
}

TEST(StopSignalTest, AnImmediateRepeatIsTheSameRequest) {
  const StopSignal stop;
  for (const int signo : {SIGTERM, SIGINT, SIGTERM}) std::raise(signo);
  EXPECT_EQ(stop.received(), SIGTERM);
}

TEST(StopSignalDeathTest, TheSecondAfterASecondEndsTheProcess) {
  for (const int signo : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          const StopSignal stop;
          std::raise(SIGTERM);
          absl::SleepFor(kOverASecond);
          std::raise(signo);
          std::_Exit(0);
        },
        testing::KilledBySignal(signo), "");
  }
}

TEST(StopSignalTest, OtherSignalsNeverKill) {
  const StopSignal stop;
  std::raise(SIGUSR1);
  absl::SleepFor(kOverASecond);
  // Slurm's SIGUSR1 arrives long before its SIGTERM.
  for (const int signo : {SIGUSR1, SIGHUP, SIGTERM}) std::raise(signo);
  EXPECT_EQ(stop.received(), SIGUSR1);
}

TEST(StopSignalTest, WorkInPiecesStopsAtTheNextCheck) {
  const std::function<absl::Status()> check = StopCheck();
  EXPECT_TRUE(check().ok());
  std::raise(SIGTERM);
  EXPECT_TRUE(absl::IsCancelled(check()));
}

TEST(StopSignalTest, CopiesOfACheckShareIt) {
  const std::function<absl::Status()> check = StopCheck();
  {
    const std::function<absl::Status()> copy = check;
    EXPECT_TRUE(copy().ok());
  }
  std::raise(SIGTERM);  // would end the process
  EXPECT_TRUE(absl::IsCancelled(check()));
}

TEST(StopSignalTest, NohupIsRespectedAndEarlierHandlersAreRestored) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignal stop;
    std::raise(SIGHUP);
    EXPECT_EQ(stop.received(), 0);
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
  EXPECT_EQ(std::signal(SIGTERM, SIG_DFL), SIG_DFL);
}

}  // namespace
}  // namespace tessera
