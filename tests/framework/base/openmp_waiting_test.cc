#include "framework/base/openmp_waiting.h"

#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <thread>

#include "ATen/ATen.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

int NumThreads() {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                    std::filesystem::directory_iterator()));
}

// Whether there are `count` threads within some seconds.
bool BecomesNumThreads(int count) {
  const absl::Time end = MonotonicNow() + absl::Seconds(20);
  while (NumThreads() != count) {
    if (MonotonicNow() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// Pretends that a thread waits for a core half of the time while `busy_` is
// true.
class OpenMpWaitingTest : public ::testing::Test {
 protected:
  OpenMpWaitingTest() {
    ::unsetenv("GOMP_SPINCOUNT");
    ::unsetenv("OMP_WAIT_POLICY");
    ::unsetenv("OMP_NUM_THREADS");
    at::zeros({1}).add_(1);  // loads LibTorch, and with it libgomp
  }

  OpenMpWaiting::Waited Waited() {
    return [this]() -> std::optional<absl::Duration> {
      const absl::Time now = MonotonicNow();
      if (busy_) waited_ += (now - then_) / 2;
      then_ = now;
      return waited_;
    };
  }

  // Threads of the team, its owner included: one more than cores.
  static int TeamSize() {
    return static_cast<int>(std::thread::hardware_concurrency()) + 1;
  }

  std::atomic<bool> busy_ = false;

 private:
  absl::Time then_ = MonotonicNow();
  absl::Duration waited_;
};

TEST_F(OpenMpWaitingTest, KeepsATeamAsleepWhileTheCoresAreBusy) {
  const int before = NumThreads();
  {
    const OpenMpWaiting waiting(Waited(), absl::Milliseconds(5));
    ASSERT_TRUE(BecomesNumThreads(before + 1)) << NumThreads();
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_EQ(NumThreads(), before + 1);  // not yet
    busy_ = true;
    EXPECT_TRUE(BecomesNumThreads(before + 1 + TeamSize())) << NumThreads();
    busy_ = false;
    EXPECT_TRUE(BecomesNumThreads(before + 1)) << NumThreads();
    busy_ = true;
    EXPECT_TRUE(BecomesNumThreads(before + 1 + TeamSize())) << NumThreads();
  }
  EXPECT_TRUE(BecomesNumThreads(before)) << NumThreads();
}

TEST_F(OpenMpWaitingTest, TheUsersChoiceStands) {
  busy_ = true;
  for (const char* variable :
       {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}) {
    ::setenv(variable, "1", /*overwrite=*/1);
    const int before = NumThreads();
    const OpenMpWaiting waiting(Waited(), absl::Milliseconds(5));
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_EQ(NumThreads(), before);
    ::unsetenv(variable);
  }
}

TEST_F(OpenMpWaitingTest, WithoutTheSystemsCountNothingHappens) {
  const int before = NumThreads();
  const OpenMpWaiting waiting([] { return std::nullopt; },
                              absl::Milliseconds(5));
  EXPECT_TRUE(BecomesNumThreads(before)) << NumThreads();
}

TEST_F(OpenMpWaitingTest, TheCountOfAThreadGrows) {
  const OpenMpWaiting::Waited waited = OpenMpWaiting::OfThisThread();
  const std::optional<absl::Duration> before = waited();
  if (!before.has_value()) GTEST_SKIP() << "this kernel does not count it";
  // Two threads on one core.
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  std::atomic<bool> ends = false;
  std::thread other([&] {
    while (!ends) {
    }
  });
  const absl::Time end = MonotonicNow() + absl::Seconds(20);
  while (*waited() == *before && MonotonicNow() < end) {
  }
  ends = true;
  other.join();
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_GT(*waited(), *before);
}

}  // namespace
}  // namespace tessera
