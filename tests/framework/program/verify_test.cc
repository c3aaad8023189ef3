#include "framework/program/verify.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/program/lifetime.h"
#include "framework/program/rewrites/overlap_weight_gradients.h"
#include "framework/program/schedule.h"
#include "framework/program/stream_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/random_program.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Plans with one planted fault each.
class VerifyLifetimesTest : public ::testing::Test {
 protected:
  VerifyLifetimesTest()
      : built_(TwoLayers()),
        schedule_(TrainingSchedule(built_.program, built_.loss)),
        ranges_(RangesOf(built_.program)) {
    schedule_.gradients = ranges_;
    plan_ = PlanLifetimes(schedule_, {.lend_gradients = true, .arena = true});
  }

  Buffer& BufferOf(int value) { return plan_.buffers[plan_.buffer_of[value]]; }
  std::string Fault() {
    const absl::Status status = VerifyLifetimes(schedule_, plan_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  }

  Built built_;
  Schedule schedule_;
  std::vector<GradientRange> ranges_;
  Lifetimes plan_;
};

TEST_F(VerifyLifetimesTest, AcceptsThePlan) {
  const absl::Status status = VerifyLifetimes(schedule_, plan_).status();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(VerifyLifetimesTest, FindsAValueFreedBeforeItsLastRead) {
  // What the first product reads dies with the run before its backward.
  const int square = schedule_.runs[0].results[0];
  std::vector<int>& dead = plan_.dead_after[BufferOf(square).last];
  dead.erase(std::find(dead.begin(), dead.end(), square));
  plan_.dead_after[6].push_back(square);
  EXPECT_THAT(Fault(), HasSubstr("the backward of one/one reads value 1"));
}

TEST_F(VerifyLifetimesTest, FindsAValueThatIsNeverFreed) {
  const int square = schedule_.runs[0].results[0];
  std::vector<int>& dead = plan_.dead_after[BufferOf(square).last];
  dead.erase(std::find(dead.begin(), dead.end(), square));
  EXPECT_THAT(Fault(), HasSubstr("(one/square) is never freed"));
}

TEST_F(VerifyLifetimesTest, FindsTwoValuesInOnePlace) {
  const int square = schedule_.runs[0].results[0];
  const int product = schedule_.runs[1].results[0];
  Buffer& other = BufferOf(product);
  other.storage = BufferOf(square).storage;
  other.offset = BufferOf(square).offset;
  EXPECT_THAT(Fault(), HasSubstr("which it reads"));
}

TEST_F(VerifyLifetimesTest, FindsAnActivationInAGradientThatIsWritten) {
  // The first square is read by the last run, after the second layer's gradient
  // has been written.
  plan_ = PlanLifetimes(schedule_);
  Buffer& square = BufferOf(schedule_.runs[0].results[0]);
  square.storage = Storage::kGradients;
  square.offset = ranges_[1].begin;
  EXPECT_THAT(Fault(), HasSubstr("reads value 1 (one/square), but the gradient "
                                 "of two.weight lies there"));
}

TEST_F(VerifyLifetimesTest, FindsAnOutputInTheGradientBuffer) {
  plan_ = PlanLifetimes(schedule_);
  Buffer& loss = BufferOf(built_.loss.index);
  loss.storage = Storage::kGradients;
  loss.offset = ranges_[1].begin;
  EXPECT_THAT(Fault(), HasSubstr("the caller reads"));
}

TEST_F(VerifyLifetimesTest, FindsAPlaceOutsideOfTheBuffer) {
  const int square = schedule_.runs[0].results[0];
  BufferOf(square).offset += 128;
  EXPECT_THAT(Fault(), HasSubstr("lies at byte"));
}

TEST_F(VerifyLifetimesTest, FindsAGradientThatIsWrittenTwice) {
  schedule_.runs.push_back(schedule_.runs.back());
  plan_.dead_after.emplace_back();
  plan_.dead_after.back().swap(plan_.dead_after[schedule_.runs.size() - 2]);
  EXPECT_THAT(Fault(), HasSubstr("overwrites the gradient of one.weight"));
}

TEST_F(VerifyLifetimesTest, FindsAGradientThatIsNotWritten) {
  schedule_.runs.back().d_operands[1] = {};
  EXPECT_THAT(Fault(), HasSubstr("one.weight is not written"));
}

TEST_F(VerifyLifetimesTest, FindsWhatARunBesideOthersStillReads) {
  OverlapWeightGradients(&schedule_);
  // Planned as if every run took its turn.
  Schedule in_turn = schedule_;
  for (StepRun& run : in_turn.runs) run.stream = StepStream::kMain;
  plan_ = PlanLifetimes(in_turn, {.lend_gradients = true, .arena = true});
  AddDataWaits(&schedule_);
  EXPECT_THAT(Fault(),
              HasSubstr("without waiting for the backward of two/two, which "
                        "reads value"));
}

// The waits between runs of two streams are needed, each of them.
TEST_F(VerifyLifetimesTest, FindsEveryMissingWait) {
  OverlapWeightGradients(&schedule_);
  AddDataWaits(&schedule_);
  plan_ = PlanLifetimes(schedule_, {.lend_gradients = true, .arena = true});
  ASSERT_TRUE(VerifyLifetimes(schedule_, plan_).ok());
  int waits = 0;
  for (StepRun& run : schedule_.runs) {
    for (size_t i = 0; i < run.waits.size(); ++i, ++waits) {
      const std::vector<int> all = run.waits;
      run.waits.erase(run.waits.begin() + i);
      EXPECT_THAT(Fault(), HasSubstr("without waiting for"));
      run.waits = all;
    }
  }
  EXPECT_GT(waits, 0);
}

// What the check of a plan says; empty if it accepts it.
std::string FaultOf(const Schedule& schedule, const Lifetimes& plan) {
  return std::string(VerifyLifetimes(schedule, plan).status().message());
}

// Steps whose sums over the ranks have one planted fault each.
class VerifyReduceTest : public ::testing::Test {
 protected:
  VerifyReduceTest()
      : built_(TwoLayers()),
        schedule_(Rewritten(StepOf(built_.program, built_.loss, 2),
                            {.reduce = true})) {}

  int FirstSum() const {
    const auto found = absl::c_find_if(schedule_.runs, [](const StepRun& run) {
      return run.stream == StepStream::kCommunication;
    });
    return static_cast<int>(found - schedule_.runs.begin());
  }
  // The run that sums the loss over the ranks.
  std::vector<StepRun>::iterator LossSum() {
    return absl::c_find_if(schedule_.runs, [this](const StepRun& run) {
      return schedule_.IsTask(run, Task::Kind::kReduceLoss);
    });
  }
  std::string Fault() { return FaultOf(schedule_, PlanLifetimes(schedule_)); }

  Built built_;
  Schedule schedule_;
};

TEST_F(VerifyReduceTest, AcceptsTheStep) { EXPECT_THAT(Fault(), IsEmpty()); }

TEST_F(VerifyReduceTest, FindsAGradientThatIsSummedTwice) {
  const StepRun sum = schedule_.runs[FirstSum()];
  schedule_.runs.push_back(sum);
  schedule_.runs.back().waits.clear();
  EXPECT_THAT(Fault(), ContainsRegex("sums the gradient of .* twice"));
}

TEST_F(VerifyReduceTest, FindsAGradientThatIsNotSummed) {
  schedule_.tasks[schedule_.runs[FirstSum()].task].range = {};
  EXPECT_THAT(Fault(), HasSubstr("before all of it was summed"));
}

TEST_F(VerifyReduceTest, FindsAGradientThatIsSummedTooEarly) {
  // Before the second micro-batch adds to it.
  const int sum = FirstSum();
  const auto at = absl::c_find_if(
      schedule_.runs, [](const StepRun& run) { return run.micro_batch == 1; });
  std::rotate(at, schedule_.runs.begin() + sum,
              schedule_.runs.begin() + sum + 1);
  for (StepRun& run : schedule_.runs) run.waits.clear();
  AddDataWaits(&schedule_);
  EXPECT_THAT(Fault(), HasSubstr("which was summed over the ranks"));
}

TEST_F(VerifyReduceTest, FindsAnUpdateThatDoesNotWait) {
  for (StepRun& run : schedule_.runs) {
    const bool on_main = run.stream == StepStream::kMain;
    if (on_main && run.kind == StepRun::Kind::kTask) run.waits.clear();
  }
  EXPECT_THAT(Fault(), HasSubstr("without waiting for the"));
}

TEST_F(VerifyReduceTest, FindsALossThatIsSummedTooEarly) {
  const auto sum = LossSum();
  sum->stream = StepStream::kCommunication;
  sum->waits.clear();
  EXPECT_THAT(Fault(), HasSubstr("(sum of losses) without waiting for"));
  AddDataWaits(&schedule_);
  EXPECT_THAT(Fault(), IsEmpty());
}

// The loss is summed after the first sum of gradients, but beside the last.
TEST_F(VerifyReduceTest, FindsACollectiveThatWaitsOnlyForAnEarlierOne) {
  const auto loss = LossSum();
  std::vector<int>& later = (loss + 1)->waits;
  later.insert(later.end(), loss->waits.begin(), loss->waits.end());
  loss->waits = {FirstSum()};
  EXPECT_THAT(Fault(), HasSubstr("communicates without waiting for"));
}

TEST_F(VerifyReduceTest, TheOrderOfCollectivesIsPartOfTheList) {
  Schedule exchanged = schedule_;
  const auto first = exchanged.runs.begin() + FirstSum();
  const auto second = std::find_if(
      first + 1, exchanged.runs.end(),
      [&](const StepRun& run) { return run.stream == first->stream; });
  ASSERT_NE(second, exchanged.runs.end());
  std::swap(first->task, second->task);
  EXPECT_NE(CollectiveOrder(exchanged), CollectiveOrder(schedule_));
}

// Steps that begin with the update of the step before, with one planted fault
// each.
class VerifyDeferredTest : public ::testing::Test {
 protected:
  VerifyDeferredTest()
      : built_(TwoLayers()),
        schedule_(Rewritten(StepOf(built_.program, built_.loss, 1),
                            {.defer = true})) {}

  std::string Fault() {
    return FaultOf(schedule_, PlanLifetimes(schedule_, {.lend_gradients = true,
                                                        .arena = true}));
  }
  // Moves a run, or removes it if `to` is negative; adds the waits again.
  void Move(int from, int to) {
    const StepRun run = schedule_.runs[from];
    schedule_.runs.erase(schedule_.runs.begin() + from);
    if (to >= 0) schedule_.runs.insert(schedule_.runs.begin() + to, run);
    for (StepRun& each : schedule_.runs) each.waits.clear();
    AddDataWaits(&schedule_);
  }

  Built built_;
  Schedule schedule_;
};

TEST_F(VerifyDeferredTest, AcceptsTheStep) { EXPECT_THAT(Fault(), IsEmpty()); }

TEST_F(VerifyDeferredTest, FindsWeightsThatAreNotUpdated) {
  Move(0, -1);
  EXPECT_THAT(Fault(), ContainsRegex("the forward of one/one reads value .* "
                                     "\\(one.weight\\) of the step before"));
}

TEST_F(VerifyDeferredTest, FindsWeightsThatAreUpdatedTooLate) {
  const auto second = absl::c_find_if(schedule_.runs, [&](const StepRun& run) {
    return run.op == 2 && run.kind == StepRun::Kind::kForward;
  });
  Move(0, static_cast<int>(second - schedule_.runs.begin()));
  EXPECT_THAT(Fault(), HasSubstr("(one.weight) of the step before"));
}

TEST_F(VerifyDeferredTest, FindsAnUpdateWithTheFactorsOfItsOwnStep) {
  schedule_.starts_pending = false;
  EXPECT_THAT(Fault(), HasSubstr("(update.factors) of the step before"));
  schedule_ = StepOf(built_.program, built_.loss, 1);
  schedule_.starts_pending = true;
  EXPECT_THAT(Fault(), HasSubstr("of the step before"));
}

TEST_F(VerifyDeferredTest, FindsAnUpdateThatNobodyWaitsFor) {
  const Lifetimes plan = PlanLifetimes(schedule_);
  for (StepRun& run : schedule_.runs) {
    if (run.stream == StepStream::kMain) run.waits.clear();
  }
  EXPECT_THAT(FaultOf(schedule_, plan), HasSubstr("without waiting for the"));
}

TEST_F(VerifyDeferredTest, FindsAnActivationOverAGradientThatWaits) {
  Lifetimes plan = PlanLifetimes(schedule_);
  const auto first = absl::c_find_if(schedule_.runs, [](const StepRun& run) {
    return run.kind == StepRun::Kind::kForward;
  });
  Buffer& buffer = plan.buffers[plan.buffer_of[first->results[0]]];
  buffer.storage = Storage::kGradients;
  buffer.offset = schedule_.gradients[1].begin;
  EXPECT_THAT(FaultOf(schedule_, plan), HasSubstr("without waiting for the"));
}

// Steps of two micro-batches in which ranks divide gradients and weights, with
// one planted fault each.
class VerifyShardedTest : public ::testing::Test {
 protected:
  VerifyShardedTest() {
    for (int seed = 0; !HasSections(); ++seed) {
      made_.emplace(seed, RandomProgram::Sizes{.rows = 5, .width = 20});
      plain_ =
          StepOf(*made_->program, made_->loss, 2, {.shards = 2, .index = 1});
      schedule_ = Rewritten(plain_, {.overlap = true, .zero = 3});
    }
    plan_ = PlanLifetimes(schedule_);
  }
  // Whether there are several in forward and backward of each micro-batch.
  bool HasSections() const {
    return RunsOf(Task::Kind::kUnshard).size() >= 8 &&
           RunsOf(Task::Kind::kReduce).size() >= 6;
  }

  std::string Fault() { return FaultOf(schedule_, plan_); }
  // The runs of a kind of task.
  std::vector<int> RunsOf(Task::Kind kind) const {
    std::vector<int> runs;
    for (size_t r = 0; r < schedule_.runs.size(); ++r) {
      if (schedule_.IsTask(schedule_.runs[r], kind)) {
        runs.push_back(static_cast<int>(r));
      }
    }
    return runs;
  }

  std::optional<RandomProgram> made_;
  Schedule plain_, schedule_;
  Lifetimes plan_;
};

TEST_F(VerifyShardedTest, AcceptsTheStep) { EXPECT_THAT(Fault(), IsEmpty()); }

TEST_F(VerifyShardedTest, FindsWeightsThatAreReadAfterTheyWereFreed) {
  // The backward pass reads what the forward pass had fetched.
  int first = -1;
  for (StepRun& run : schedule_.runs) {
    for (int& operand : run.operands) {
      if (operand < 0 || schedule_.values[operand].role != Role::kGathered) {
        continue;
      }
      if (first < 0) first = operand;
      if (schedule_.values[operand].parameter ==
          schedule_.values[first].parameter) {
        operand = first;
      }
    }
  }
  EXPECT_THAT(Fault(), HasSubstr("but nothing lies there"));
}

TEST_F(VerifyShardedTest, FindsWeightsThatNobodyFetches) {
  schedule_.runs[RunsOf(Task::Kind::kUnshard).back()].results.clear();
  EXPECT_THAT(Fault(), HasSubstr("lies there"));
}

TEST_F(VerifyShardedTest, FindsTwoSectionsInOnePlace) {
  for (const int run : RunsOf(Task::Kind::kUnshard)) {
    const int value = schedule_.runs[run].results[0];
    plan_.buffers[plan_.buffer_of[value]].offset = 0;
  }
  EXPECT_THAT(Fault(), Not(IsEmpty()));
}

TEST_F(VerifyShardedTest, FindsASumThatReplacesTheOneBefore) {
  for (const int run : RunsOf(Task::Kind::kReduce)) {
    schedule_.tasks[schedule_.runs[run].task].adds = false;
  }
  EXPECT_THAT(Fault(), ContainsRegex("sums the gradient of .* twice"));
}

TEST_F(VerifyShardedTest, FindsAMicroBatchThatIsNotSummed) {
  const auto expected = VerifyLifetimes(plain_, PlanLifetimes(plain_)).value();
  EXPECT_EQ(VerifyLifetimes(schedule_, plan_).value(), expected);
  StepRun& last = schedule_.runs[RunsOf(Task::Kind::kReduce).back()];
  std::vector<int>& operands = last.operands;
  operands.erase(operands.begin());
  const auto found = VerifyLifetimes(schedule_, plan_);
  EXPECT_TRUE(!found.ok() || *found != expected);
}

TEST_F(VerifyShardedTest, FindsWeightsOfTheStepAfter) {
  const std::vector<int> updates = RunsOf(Task::Kind::kUpdate);
  const int fetch = RunsOf(Task::Kind::kUnshard).front();
  for (size_t u = 0; u < updates.size(); ++u) {
    const StepRun update = schedule_.runs[updates[u]];
    schedule_.runs.erase(schedule_.runs.begin() + updates[u]);
    schedule_.runs.insert(schedule_.runs.begin() + fetch, update);
  }
  for (StepRun& run : schedule_.runs) run.waits.clear();
  AddDataWaits(&schedule_);
  EXPECT_THAT(FaultOf(schedule_, PlanLifetimes(schedule_)), Not(IsEmpty()));
}

}  // namespace
}  // namespace tessera::testing
