#include "framework/observe/phase_timer.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/cuda_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(5);

void Phase(PhaseTimer& timer, absl::string_view name,
           const std::function<void()>& inside) {
  const PhaseScope scope(&timer, name);
  inside();
}

// A step whose forward pass runs twice, as with two micro-batches.
void Step(PhaseTimer& timer, int64_t step) {
  const StepScope scope(&timer, step);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    Phase(timer, "forward", [&] {
      Phase(timer, "block_0", [&] {
        const OpScope op(&timer, "sdpa");
        Phase(timer, "scores", [] { absl::SleepFor(kShort); });
      });
      Phase(timer, "block_1", [] {});
    });
  }
  Phase(timer, "optimizer", [] {});
}

std::vector<std::string> Paths(const std::vector<PhaseTime>& times) {
  std::vector<std::string> paths;
  for (const PhaseTime& time : times) paths.push_back(time.path);
  return paths;
}

TEST(PhaseTimerTest, SumsAStepsOccurrencesAndAveragesOverSteps) {
  PhaseTimer timer({});
  timer.Take();
  for (int64_t step = 1; step <= 3; ++step) Step(timer, step);
  const std::vector<PhaseTime> times = timer.Take();
  ASSERT_THAT(Paths(times), testing::ElementsAre("forward", "optimizer"));
  EXPECT_EQ(times[0].count, 3);
  EXPECT_GE(times[0].ms, 2 * absl::ToDoubleMilliseconds(kShort));
  EXPECT_LT(times[1].ms, times[0].ms);
  EXPECT_THAT(timer.Take(), testing::IsEmpty());
  Step(timer, 3);  // a new step, though its number is that of the last one
  ASSERT_THAT(Paths(timer.Take()),
              testing::ElementsAre("forward", "optimizer"));
}

// It compiles and takes memory.
TEST(PhaseTimerTest, TheSecondStepDropsTheFirst) {
  PhaseTimer timer({});
  Step(timer, 1);
  Step(timer, 2);
  EXPECT_EQ(timer.Take()[0].count, 1);
  Step(timer, 3);
  Step(timer, 4);
  EXPECT_EQ(timer.Take()[0].count, 2);
  PhaseTimer only({});
  Step(only, 1);
  EXPECT_EQ(only.Take()[0].count, 1);
}

// absl::Now() would jump with the system's clock.
TEST(PhaseTimerTest, ReadsTheClockThatNobodyCanSet) {
  EXPECT_EQ(*PhaseTimerOptions().clock.target<absl::Time (*)()>(),
            &MonotonicNow);
  absl::Time now;
  PhaseTimer timer({.clock = [&] { return now; }});
  {
    const StepScope scope(&timer, 1);
    Phase(timer, "forward", [&] { now += absl::Milliseconds(3); });
    now += absl::Milliseconds(100);
    Phase(timer, "backward", [&] { now += absl::Milliseconds(4); });
  }
  const std::vector<PhaseTime> times = timer.Take();
  ASSERT_THAT(Paths(times), testing::ElementsAre("forward", "backward"));
  EXPECT_EQ(times[0].ms, 3);
  EXPECT_EQ(times[1].ms, 4);
}

TEST(PhaseTimerTest, LooksInsideEveryNthStepOnly) {
  PhaseTimer timer({.detail_every_steps = 2});
  for (int64_t step = 1; step <= 5; ++step) Step(timer, step);
  const std::vector<PhaseTime> times = timer.Take();
  ASSERT_THAT(Paths(times),
              testing::ElementsAre("forward", "forward/block_0",
                                   "forward/block_0/scores", "forward/block_1",
                                   "optimizer"));
  EXPECT_EQ(times[0].count, 4);
  EXPECT_EQ(times[2].count, 2);
  EXPECT_GE(times[2].ms, 2 * absl::ToDoubleMilliseconds(kShort));
  EXPECT_LE(times[2].ms, times[1].ms);
}

TEST(PhaseTimerTest, CountsOccurrencesOutsideOfSteps) {
  PhaseTimer timer({.detail_every_steps = 1});
  for (int i = 0; i < 2; ++i) {
    Phase(timer, "evaluation", [&] {
      for (int batch = 0; batch < 3; ++batch) {
        Phase(timer, "forward", [] { absl::SleepFor(kShort); });
      }
    });
  }
  const std::vector<PhaseTime> times = timer.Take();
  ASSERT_THAT(Paths(times), testing::ElementsAre("evaluation"));
  EXPECT_EQ(times[0].count, 2);
  EXPECT_GE(times[0].ms, 3 * absl::ToDoubleMilliseconds(kShort));
}

// A GPU that is not there stands for one that has failed.
TEST(PhaseTimerTest, AFailureOfTheDeviceIsReportedWhenAskedFor) {
  PhaseTimer timer({.device = c10::Device(c10::kCUDA, 63)});
  const absl::Status of_the_work = StatusFromTorch([&] {
    const StepScope step(&timer, 1);
    Phase(timer, "forward", [] {});
    Phase(timer, "backward",
          [] { ThrowIfError(absl::AbortedError("of the work")); });
  });
  EXPECT_EQ(of_the_work, absl::AbortedError("of the work"));
  StepRecord record;
  const absl::Status status = timer.AddTo(&record);
  EXPECT_THAT(absl::StrCat(status.message()),
              testing::AllOf(testing::ContainsRegex("CUDA|cuda"),
                             testing::HasSubstr("observe.phases: false")));
  EXPECT_EQ(timer.AddTo(&record), status);
  EXPECT_THAT(record.phases, testing::IsEmpty());
}

// Products on a GPU, whose launch takes far less time than they do.
TEST(GpuPhaseTimerTest, TimesTheDeviceAndDoesNotWaitForIt) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Device device(at::kCUDA, 0);
  PhaseTimer timer({.device = device});
  const at::Tensor a =
      at::ones({8192, 8192}, at::dtype(at::kFloat).device(device));
  a.mm(a).sum().item<float>();
  const absl::Time begin = absl::Now();
  {
    const StepScope step(&timer, 1);
    Phase(timer, "forward", [&] {
      for (int i = 0; i < 10; ++i) a.mm(a);
    });
    Phase(timer, "backward", [&] {
      for (int i = 0; i < 30; ++i) a.mm(a);
    });
  }
  const absl::Duration issued = absl::Now() - begin;
  const std::vector<PhaseTime> times = timer.Take();
  const double wall_ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
  ASSERT_EQ(times.size(), 2u);
  EXPECT_LT(absl::ToDoubleMilliseconds(issued), 0.5 * wall_ms);
  EXPECT_NEAR(times[0].ms + times[1].ms, wall_ms, 0.02 * wall_ms);
  EXPECT_NEAR(times[1].ms / times[0].ms, 3, 0.3);
}

// A launch counts whatever the number of its step is.
TEST(GpuPhaseTimerTest, TimesEachLaunchOfAGraph) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  if constexpr (kCudaBuild) {
    const at::Device device(at::kCUDA, 0);
    PhaseTimer timer({.device = device});
    const at::Tensor a =
        at::ones({2048, 2048}, at::dtype(at::kFloat).device(device));
    at::Tensor product = a.mm(a);
    const auto graph = MakeCudaGraph(device);
    const auto issue = [&]() -> absl::Status {
      Phase(timer, "forward", [&] { at::mm_out(product, a, a); });
      return absl::OkStatus();
    };
    ASSERT_EQ(graph->Rehearse(issue), absl::OkStatus());
    timer.Take();
    timer.BeginStep(1);
    ASSERT_EQ(graph->Capture(issue), absl::OkStatus());
    timer.EndStep();
    timer.Take();
    for (int i = 0; i < 3; ++i) {
      const StepScope step(&timer, 1);
      ASSERT_EQ(graph->Launch(), absl::OkStatus());
      const std::vector<PhaseTime> times = timer.Take();
      ASSERT_THAT(Paths(times), testing::ElementsAre("forward"));
      EXPECT_EQ(times[0].count, 1);
      EXPECT_GT(times[0].ms, 0);
    }
  }
}

}  // namespace
}  // namespace tessera
