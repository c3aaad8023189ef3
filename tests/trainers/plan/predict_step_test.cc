#include "trainers/plan/predict_step.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// A list of tasks, each with the bytes that it moves.
class List {
 public:
  // Returns the run's index.
  int Add(StepStream stream, std::string family, int64_t bytes,
          std::vector<int> waits = {}, int micro_batch = -1) {
    schedule_.tasks.push_back(
        {.kind = family.empty() ? Task::Kind::kZero : Task::Kind::kReduce,
         .family = std::move(family),
         .cost = {.bytes = bytes}});
    StepRun run;
    run.kind = StepRun::Kind::kTask;
    run.task = static_cast<int>(schedule_.tasks.size()) - 1;
    run.micro_batch = micro_batch;
    run.stream = stream;
    run.waits = std::move(waits);
    schedule_.runs.push_back(run);
    return run.task;
  }
  // A run that computes for `seconds`.
  int Compute(StepStream stream, int seconds, std::vector<int> waits = {},
              int micro_batch = -1) {
    return Add(stream, "", seconds * kBytes, std::move(waits), micro_batch);
  }
  Schedule& schedule() { return schedule_; }

  // At 1 GB/s of memory, all-gathers and all-reduces, and 0.5 GB/s of
  // reduce-scatters; an operation begins after 0.25 s.
  // Beside one, runs compute at `compute_rate`.
  StepTime Predict(double compute_rate = 1, double gap = 0) const {
    LinkConfig link;
    link.set_compute_rate(compute_rate);
    link.set_all_gather_gb_per_s(1);
    link.set_all_reduce_gb_per_s(1);
    link.set_reduce_scatter_gb_per_s(0.5);
    link.set_latency_us(250'000);
    return PredictStep(schedule_, {.bytes_per_s = 1e9}, gap, link).value();
  }

  static constexpr int64_t kBytes = 1'000'000'000;

 private:
  Schedule schedule_;
};

constexpr StepStream kMain = StepStream::kMain;
constexpr StepStream kCommunication = StepStream::kCommunication;
constexpr StepStream kUpdate = StepStream::kUpdate;

TEST(PredictStepTest, CommunicationRunsBesideWhatDoesNotWaitForIt) {
  List list;
  const int first = list.Compute(kMain, 1);
  // Sends 2 GB and receives 2 GB.
  const int gather =
      list.Add(kCommunication, "all_gather", 4 * List::kBytes, {first});
  list.Compute(kMain, 1);
  list.Compute(kMain, 1, {gather});
  const StepTime time = list.Predict();
  EXPECT_DOUBLE_EQ(time.communication, 2.25);
  EXPECT_DOUBLE_EQ(time.compute, 3);
  EXPECT_DOUBLE_EQ(time.step, 1 + 2.25 + 1);
  EXPECT_DOUBLE_EQ(time.waiting(), 1.25);
}

TEST(PredictStepTest, EveryOperationOfACollectiveHasItsBandwidthAndLatency) {
  List list;
  list.Add(kCommunication, "reduce_scatter, all_gather", 4 * List::kBytes);
  list.Add(kCommunication, "all_reduce", 2 * List::kBytes);
  list.Add(kCommunication, "all_reduce", 0);
  EXPECT_DOUBLE_EQ(list.Predict().communication,
                   (2 + 0.25) + (1 + 0.25) + (1 + 0.25) + 0.25);
}

TEST(PredictStepTest, RunsThatComputeHaveTheGpuOneAtATime) {
  List list;
  list.Compute(kUpdate, 2);
  const int gather = list.Add(kCommunication, "all_gather", 2 * List::kBytes);
  list.Compute(kUpdate, 1, {gather});  // does not hold up the main stream
  list.Compute(kMain, 1);
  list.Compute(kMain, 1);
  const StepTime time = list.Predict();
  EXPECT_DOUBLE_EQ(time.step, 5);
  EXPECT_DOUBLE_EQ(time.waiting(), 0);
}

TEST(PredictStepTest, ComputesSlowerBesideACollective) {
  List list;
  // Takes 2.25 s.
  list.Add(kCommunication, "all_gather", 4 * List::kBytes);
  list.Compute(kMain, 1);
  list.Compute(kUpdate, 4);
  // In 2.25 s, 1.125 s of 5 s are done.
  EXPECT_DOUBLE_EQ(list.Predict(0.5).step, 2.25 + 5 - 1.125);
  EXPECT_DOUBLE_EQ(list.Predict(1).step, 5);
}

TEST(PredictStepTest, ThereIsAGapAfterEachRunThatComputes) {
  List list;
  list.Compute(kMain, 1);
  list.Add(kCommunication, "all_gather", 4 * List::kBytes, {0});
  list.Compute(kMain, 1, {1});
  EXPECT_DOUBLE_EQ(list.Predict(1, 0.5).step, 1.5 + 2.25 + 1.5);
}

TEST(PredictStepTest, TheSecondMicroBatchStandsForAllInBetween) {
  List list;
  for (int m = 0; m < 3; ++m) list.Compute(kMain, 1, {}, m);
  list.schedule().values_of.resize(3);
  list.schedule().micro_batches = 3;
  EXPECT_DOUBLE_EQ(list.Predict().step, 3);
  list.schedule().micro_batches = 8;
  EXPECT_DOUBLE_EQ(list.Predict().step, 8);
}

TEST(PredictStepTest, EveryMicroBatchHasItsGaps) {
  List list;
  for (int m = 0; m < 3; ++m) list.Compute(kMain, 1, {}, m);
  list.schedule().values_of.resize(3);
  list.schedule().micro_batches = 8;
  EXPECT_DOUBLE_EQ(list.Predict(1, 0.5).step, 8 * 1.5);
}

TEST(PredictStepTest, NeedsTheRates) {
  List list;
  list.Compute(kMain, 1);
  EXPECT_FALSE(PredictStep(list.schedule(), {}, 0, {}).has_value());
}

}  // namespace
}  // namespace tessera
