#include "bench/measure/timing.h"

#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(SummaryTest, OfEvenAndOddCounts) {
  const nlohmann::ordered_json odd = ToJson(Summarize({4, 1, 1}));
  EXPECT_EQ(odd["mean"], 2);
  EXPECT_NEAR(odd["std"], 1.7320508, 1e-6);
  EXPECT_EQ(odd["median"], 1);
  EXPECT_EQ(odd["min"], 1);
  EXPECT_EQ(odd["max"], 4);
  EXPECT_EQ(odd["samples"], 3);
  EXPECT_EQ(Summarize({3}).std, 0);
}

TEST(TimeCallsTest, CountsCallsAndStopsAtItsLimit) {
  int calls = 0;
  const auto call = [&] {
    ++calls;
    return absl::OkStatus();
  };
  const auto all = TimeCalls(call, c10::kCPU, {.warmup = 2, .iterations = 5});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->warmup_ms.size(), 2);
  EXPECT_EQ(all->ms.size(), 5);
  EXPECT_EQ(calls, 7);
  double sum_ms = 0;
  for (const double ms : all->ms) sum_ms += ms;
  EXPECT_GE(all->wall_ms, sum_ms / 5);
  const auto few = TimeCalls(call, c10::kCPU,
                             {.warmup = 9,
                              .iterations = 9,
                              .min_iterations = 4,
                              .time_limit = absl::ZeroDuration()});
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(few->warmup_ms.size(), 4);
  EXPECT_EQ(few->ms.size(), 4);
}

TEST(TimeCallsTest, PreparesEachCallInTimeOfItsOwn) {
  std::string order;
  const auto times = TimeCalls(
      [&] {
        order += "c";
        return absl::OkStatus();
      },
      c10::kCPU, {.warmup = 1, .iterations = 2},
      [&] {
        order += "p";
        absl::SleepFor(absl::Milliseconds(20));
        return absl::OkStatus();
      });
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(order, "pcpcpc");
  EXPECT_LT(Summarize(times->ms).min, 20);
  EXPECT_GE(times->wall_ms, 20);
}

TEST(TimeCallsTest, StopsAtTheFirstError) {
  int calls = 0;
  const auto call = [&] {
    return ++calls < 3 ? absl::OkStatus() : absl::DataLossError("broken");
  };
  const auto times = TimeCalls(call, c10::kCPU, Repetition());
  EXPECT_EQ(times.status(), absl::DataLossError("broken"));
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace tessera
