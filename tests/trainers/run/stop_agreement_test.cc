#include "trainers/run/stop_agreement.h"

#include <ATen/ATen.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_group.h"
#include "trainers/run/stop_signal.h"

// Seconds by which the system's clock is wrong. The definition below replaces
// the C library's in this program.
static time_t wrong_by = 0;

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto failed =
      static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wrong_by;
  return failed;
}

namespace tessera {
namespace {

// Simulates two ranks that do the same, except for the other rank's requests.
class TwoRanks : public FakeGroup {
 public:
  StopDecision other;
  int exchanges = 0;

  absl::Status AllReduceSum(const at::Tensor& sums) override {
    ++exchanges;
    const auto signals = static_cast<int64_t>(kStopSignals.size());
    for (int64_t i = 0; i < signals; ++i) {
      sums[i] += other.signo == kStopSignals[i];
    }
    sums[signals] *= 2;  // seconds per step
    sums[signals + 1] += static_cast<int>(other.save);
    return {};
  }
};

TEST(StopAgreementTest, ASingleProcessDecidesAfterEveryStep) {
  const auto group = ProcessGroup::Create({}, at::kCPU).value();
  StopAgreement agreement(group.get(), at::kCPU, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    const auto agreed = agreement.Agree(step, {.signo = SIGINT, .save = true});
    ASSERT_TRUE(agreed.ok()) << agreed.status();
    EXPECT_EQ(agreed->signo, SIGINT);
    EXPECT_TRUE(agreed->save);
  }
  EXPECT_EQ(agreement.Agree(4, {})->signo, 0);
  EXPECT_FALSE(agreement.Agree(5, {})->save);
}

// The agreement of two ranks after one step.
StopDecision AgreementOn(const StopDecision& mine, const StopDecision& other) {
  TwoRanks group;
  group.other = other;
  StopAgreement agreement(&group, at::kCPU, 0);
  const auto agreed = agreement.Agree(1, mine);
  EXPECT_TRUE(agreed.ok()) << agreed.status();
  return *agreed;
}

TEST(StopAgreementTest, ASimulatedRankDecidesAfterEveryStep) {
  WorldInfo world;
  world.world_size = 512;
  world.simulated = true;
  auto group = ProcessGroup::Create(world, at::kCPU).value();
  StopAgreement agreement(group.get(), at::kCPU, 0);
  EXPECT_EQ(agreement.Agree(1, {})->signo, 0);
  EXPECT_EQ(agreement.Agree(2, {.signo = SIGINT})->signo, SIGINT);
}

TEST(StopAgreementTest, ARequestOfOneRankAppliesToAll) {
  for (const int signo : kStopSignals) {
    EXPECT_EQ(AgreementOn({.signo = signo}, {}).signo, signo);
    EXPECT_EQ(AgreementOn({}, {.signo = signo}).signo, signo);
    EXPECT_FALSE(AgreementOn({}, {.signo = signo}).save);
  }
  // The first of kStopSignals, whichever rank received it.
  EXPECT_EQ(AgreementOn({.signo = SIGTERM}, {.signo = SIGINT}).signo, SIGTERM);
  EXPECT_EQ(AgreementOn({.signo = SIGINT}, {.signo = SIGTERM}).signo, SIGTERM);
  EXPECT_TRUE(AgreementOn({.save = true}, {}).save);
  EXPECT_TRUE(AgreementOn({}, {.save = true}).save);
  EXPECT_EQ(AgreementOn({}, {.save = true}).signo, 0);
}

TEST(StopAgreementTest, RanksExchangeRequestsOnceASecond) {
  TwoRanks group;
  absl::Time now = absl::UnixEpoch();
  StopAgreement agreement(&group, at::kCPU, /*steps=*/100, [&] { return now; });
  group.other = {.signo = SIGTERM};
  std::vector<int64_t> asked;
  for (int64_t step = 101; step <= 120; ++step) {
    now += absl::Milliseconds(125);
    const int before = group.exchanges;
    const auto agreed = agreement.Agree(step, {});
    ASSERT_TRUE(agreed.ok()) << agreed.status();
    // No rank stops before the next exchange.
    EXPECT_EQ(agreed->signo, group.exchanges > before ? SIGTERM : 0);
    if (group.exchanges > before) asked.push_back(step);
  }
  EXPECT_EQ(asked, (std::vector<int64_t>{101, 109, 117}));
  // Steps that take more than a second.
  now += absl::Seconds(80);
  ASSERT_TRUE(agreement.Agree(125, {}).ok());
  ASSERT_TRUE(agreement.Agree(126, {}).ok());
  EXPECT_EQ(group.exchanges, 5);
}

TEST(StopAgreementTest, TheSystemsClockMayBeSet) {
  TwoRanks group;
  StopAgreement agreement(&group, at::kCPU, /*steps=*/0);
  wrong_by = 3600;
  const absl::Time set = absl::Now();
  ASSERT_TRUE(agreement.Agree(1, {}).ok());
  wrong_by = 0;
  EXPECT_GT(set - absl::Now(), absl::Minutes(59));
  // The step took no hour, so there are many to the next exchange.
  ASSERT_TRUE(agreement.Agree(2, {}).ok());
  EXPECT_EQ(group.exchanges, 1);
}

}  // namespace
}  // namespace tessera
