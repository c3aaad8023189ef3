#include "framework/observe/trace/kernel_trace.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

constexpr int64_t kMaxRecords = 1000;

void Step(KernelTrace& trace, int64_t step) {
  const StepScope scope(&trace, step);
  const PhaseScope forward(&trace, "forward");
  const PhaseScope block(&trace, "block_0");
  const OpScope op(&trace, "qkv");
}

class KernelTraceTest : public testing::Test {
 protected:
  void TearDown() override { RemoveTree(folder_).IgnoreError(); }

  // The step after each of `steps` steps that Collect() had work after.
  std::vector<int64_t> StepsThatCollect(KernelTrace& trace, int64_t steps) {
    std::vector<int64_t> collected;
    for (int64_t step = 1; step <= steps; ++step) {
      Step(trace, step);
      if (!trace.IsDue()) continue;
      const absl::Status status = trace.Collect();
      EXPECT_TRUE(status.ok()) << status;
      collected.push_back(step);
    }
    return collected;
  }

  nlohmann::json Profile(absl::string_view window) {
    return nlohmann::json::parse(
        ReadFile(absl::StrCat(folder_, "/", window, "/profile.json")).value());
  }

  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/kernel_trace_", getpid());
};

TEST_F(KernelTraceTest, TracesTheStepsOfItsSchedule) {
  KernelTrace trace(
      {.schedule = {.wait = 2, .warmup = 1, .active = 3, .repeat = 2},
       .folder = folder_,
       .device = "toy"},
      HostActivities(kMaxRecords));
  EXPECT_THAT(StepsThatCollect(trace, 20), testing::ElementsAre(6, 12));
  EXPECT_EQ(ListDirectory(folder_).value(),
            (std::vector<std::string>{"steps_10-12", "steps_4-6"}));
  const nlohmann::json profile = Profile("steps_4-6");
  EXPECT_EQ(profile["device"], "toy");
  EXPECT_EQ(profile["step"]["steps"], 3);
  EXPECT_THAT(std::string(profile["idle"]["summary"]),
              testing::HasSubstr("GPU-bound"));
  for (const char* file : {"trace.json.gz", "profile.txt"}) {
    EXPECT_TRUE(FileExists(absl::StrCat(folder_, "/steps_4-6/", file)));
  }
}

TEST_F(KernelTraceTest, CountsTheStepsItRecordsForTheLog) {
  KernelTrace trace(
      {.schedule = {.wait = 2, .warmup = 1, .active = 3}, .folder = folder_},
      HostActivities(kMaxRecords));
  std::vector<int64_t> traced;
  for (int64_t step = 1; step <= 8; step += 2) {
    Step(trace, step);
    Step(trace, step + 1);
    StepRecord record;
    EXPECT_TRUE(trace.AddTo(&record).ok());
    traced.push_back(*record.traced_steps);
    if (trace.IsDue()) {
      EXPECT_TRUE(trace.Collect().ok());
    }
  }
  EXPECT_THAT(traced, testing::ElementsAre(0, 2, 2, 0));
}

TEST_F(KernelTraceTest, ARunThatEndsWithinAWindowKeepsIt) {
  KernelTrace trace({.schedule = {.wait = 1, .active = 10}, .folder = folder_},
                    HostActivities(kMaxRecords));
  EXPECT_THAT(StepsThatCollect(trace, 3), testing::IsEmpty());
  EXPECT_TRUE(trace.OnTrainEnd(absl::OkStatus()).ok());
  EXPECT_EQ(Profile("steps_2-3")["step"]["steps"], 2);
}

TEST_F(KernelTraceTest, OtherRanksWriteTheirTraceOnly) {
  KernelTrace trace({.schedule = {.active = 1},
                     .folder = folder_,
                     .rank = 1,
                     .world_size = 2},
                    HostActivities(kMaxRecords));
  EXPECT_THAT(StepsThatCollect(trace, 2), testing::ElementsAre(1));
  EXPECT_EQ(ListDirectory(folder_ + "/steps_1-1").value(),
            (std::vector<std::string>{"trace_rank1.json.gz"}));
}

// Machines need not share a run's folder.
TEST_F(KernelTraceTest, OtherRanksWarnIfTheirMachineHasNoFolder) {
  const std::string missing = folder_ + "_missing";
  const auto collect = [&](int rank) {
    KernelTrace trace({.schedule = {.active = 1},
                       .folder = missing + "/trace",
                       .rank = rank,
                       .world_size = 2},
                      HostActivities(kMaxRecords));
    Step(trace, 1);
    EXPECT_TRUE(trace.IsDue());
    return trace.Collect();
  };
  testing::internal::CaptureStderr();
  const absl::Status status = collect(1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("no folder " + missing + "; for"));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(collect(0).ok());
  EXPECT_FALSE(FileExists(missing));
}

// Counts 1 MB and no tensor pipe in each kernel. Either end may fail.
class ScriptedCounters : public ActivitySource {
 public:
  ScriptedCounters(absl::Status start, absl::Status stop)
      : start_(std::move(start)), stop_(std::move(stop)) {}
  absl::Status Start() override { return start_; }
  absl::Status Stop(Trace* trace) override {
    if (!stop_.ok() || !host_->Stop(trace).ok()) return stop_;
    for (const DeviceActivity& activity : trace->activities) {
      trace->counters[activity.correlation] = {
          .launches = 1, .ns = 10, .dram_bytes = 1e6};
    }
    return stop_;
  }
  int64_t NowNs() const override { return host_->NowNs(); }

 private:
  const absl::Status start_, stop_;
  const std::unique_ptr<ActivitySource> host_ = HostActivities(kMaxRecords);
};

TEST_F(KernelTraceTest, CountsTheSecondStepForEveryWindow) {
  KernelTrace trace(
      {.schedule = {.wait = 2, .active = 1, .repeat = 2}, .folder = folder_},
      HostActivities(kMaxRecords),
      std::make_unique<ScriptedCounters>(absl::OkStatus(), absl::OkStatus()));
  for (int64_t step = 11; step <= 12; ++step) Step(trace, step);
  StepRecord record;
  ASSERT_TRUE(trace.AddTo(&record).ok());
  EXPECT_EQ(record.traced_steps, 1);  // that step takes longer, too
  EXPECT_THAT(StepsThatCollect(trace, 4), testing::ElementsAre(1, 4));
  for (const char* window : {"steps_1-1", "steps_4-4"}) {
    const nlohmann::json step = Profile(window)["step"];
    EXPECT_EQ(step["counters"]["step"], 12);
    EXPECT_EQ(step["kernels"][0]["name"], "qkv");
    EXPECT_EQ(step["kernels"][0]["dram_bytes"], 1e6);
    EXPECT_TRUE(step["kernels"][0]["tensor_pipe_pct"].is_null());
    EXPECT_THAT(
        ReadFile(absl::StrCat(folder_, "/", window, "/profile.txt")).value(),
        testing::HasSubstr("counters of step 12"));
  }
}

TEST_F(KernelTraceTest, SaysWhyKernelsAreNotCounted) {
  const absl::Status denied = absl::PermissionDeniedError("call: no");
  const absl::Status failed = absl::FailedPreconditionError("call: no");
  const auto why = [&](const absl::Status& start, const absl::Status& stop) {
    KernelTrace trace({.schedule = {.wait = 2, .active = 1}, .folder = folder_},
                      HostActivities(kMaxRecords),
                      std::make_unique<ScriptedCounters>(start, stop));
    testing::internal::CaptureStderr();
    EXPECT_THAT(StepsThatCollect(trace, 3), testing::ElementsAre(3));
    const std::string log = testing::internal::GetCapturedStderr();
    const nlohmann::json step = Profile("steps_3-3")["step"];
    EXPECT_FALSE(step["kernels"][0].contains("dram_bytes"));
    const std::string reason = step["counters"]["not_counted"];
    EXPECT_THAT(log, testing::HasSubstr("kernels are not counted: " + reason));
    EXPECT_THAT(ReadFile(folder_ + "/steps_3-3/profile.txt").value(),
                testing::HasSubstr("counters: none: " + reason));
    return reason;
  };
  EXPECT_THAT(why(denied, {}),
              testing::AllOf(testing::HasSubstr("call: no; "),
                             testing::HasSubstr("RestrictProfiling")));
  EXPECT_EQ(why(failed, {}), "call: no");
  EXPECT_EQ(why({}, failed), "call: no");
}

TEST_F(KernelTraceTest, AnErrorOfItsSourceEndsTheRun) {
  class Refusing : public ActivitySource {
   public:
    absl::Status Start() override {
      return absl::FailedPreconditionError("another profiler is here");
    }
    absl::Status Stop(Trace*) override { return absl::OkStatus(); }
    int64_t NowNs() const override { return 0; }
  };
  KernelTrace trace({.schedule = {.active = 1}, .folder = folder_},
                    std::make_unique<Refusing>());
  Step(trace, 1);
  ASSERT_TRUE(trace.IsDue());
  EXPECT_EQ(trace.Collect().message(), "another profiler is here");
}

}  // namespace
}  // namespace tessera
