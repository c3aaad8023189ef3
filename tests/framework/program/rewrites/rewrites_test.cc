// Tests that the rewrites of a step's list leave a list that computes the same,
// with random programs.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/torch_status.h"
#include "framework/optim/gradient_norm.h"
#include "framework/program/executor.h"
#include "framework/program/lifetime.h"
#include "framework/program/program.h"
#include "framework/program/rewrites/shard_gradients.h"
#include "framework/program/rewrites/shard_weights.h"
#include "framework/program/schedule.h"
#include "framework/program/verify.h"
#include "gtest/gtest.h"
#include "tests/framework/program/random_program.h"
#include "tests/framework/program/test_ops.h"

namespace tessera::testing {
namespace {

constexpr RandomProgram::Sizes kSizes = {.rows = 6, .width = 8};

Sharding RandomSharding(RandomProgram& made) {
  const int shards = 1 + made.Draw(4);
  return {.shards = shards, .index = made.Draw(shards)};
}

// Every rewrite in every storage passes the check of its bytes and computes
// what the plain list does, for more and odder programs than are run below.
TEST(RewritesTest, RandomStepsComputeWhatThePlainListDoes) {
  int lent = 0, deferred = 0, early = 0, sharded = 0, fetched = 0;
  for (int seed = 0; seed < 10'000; ++seed) {
    RandomProgram made(seed, RandomProgram::OddSizes(seed));
    const Program& program = *made.program;
    const int micro_batches = 1 + made.Draw(3);
    const Sharding sharding = RandomSharding(made);
    const Schedule plain = StepOf(program, made.loss, micro_batches, sharding);
    const absl::StatusOr<StepContents> expected =
        VerifyLifetimes(plain, PlanLifetimes(plain));
    ASSERT_TRUE(expected.ok()) << expected.status() << ", seed " << seed;
    const std::vector<RecomputedSegment> segments = made.SomeSegments();
    for (const bool overlap : {false, true}) {
      for (const bool reduce : {false, true}) {
        const Schedule schedule = Rewritten(plain, {.recompute = segments,
                                                    .overlap = overlap,
                                                    .reduce = reduce,
                                                    .defer = made.Draw(2) == 0,
                                                    .zero = made.Draw(4)});
        const bool lend =
            !schedule.shards.sharding.divides_gradients() && made.Draw(4) != 0;
        const bool arena = made.Draw(2) == 0;
        const Lifetimes plan =
            PlanLifetimes(schedule, {.lend_gradients = lend, .arena = arena});
        const absl::StatusOr<StepContents> contents =
            VerifyLifetimes(schedule, plan);
        ASSERT_TRUE(contents.ok()) << contents.status() << ", seed " << seed;
        ASSERT_EQ(*contents, *expected) << "seed " << seed;
        const bool lends =
            absl::c_any_of(plan.buffers, [](const Buffer& buffer) {
              return buffer.storage == Storage::kGradients;
            });
        lent += lends;
        deferred += lends && schedule.starts_pending;
        sharded += schedule.shards.divided();
        fetched += absl::c_any_of(schedule.tasks, [](const Task& task) {
          return task.kind == Task::Kind::kUnshard;
        });
        early += absl::c_any_of(schedule.runs, [](const StepRun& run) {
          return run.stream == StepStream::kCommunication;
        });
      }
    }
  }
  EXPECT_GT(lent, 7'000);
  EXPECT_GT(deferred, 3'500);
  EXPECT_GT(fetched, 1'500);
  EXPECT_GT(early, 15'000);
  EXPECT_GT(sharded, 10'000);
}

// No wait that AddDataWaits() adds is superfluous: without it, the check finds
// a run that reads or writes too early.
TEST(RewritesTest, EveryWaitIsNeeded) {
  int waits = 0;
  for (int seed = 0; seed < 500; ++seed) {
    RandomProgram made(seed, RandomProgram::OddSizes(seed));
    const Schedule plain = StepOf(*made.program, made.loss, 1 + made.Draw(3),
                                  RandomSharding(made));
    Rewrites rewrites = {.recompute = made.SomeSegments(),
                         .overlap = true,
                         .reduce = true,
                         .defer = made.Draw(2) == 0,
                         .zero = seed % 4};
    Schedule schedule = Rewritten(plain, rewrites);
    // Waits that limit memory are there before; the check does not need them.
    rewrites.data_waits = false;
    const Schedule limited = Rewritten(plain, rewrites);
    const bool lend = !schedule.shards.sharding.divides_gradients();
    const Lifetimes plan =
        PlanLifetimes(schedule, {.lend_gradients = lend, .arena = true});
    for (size_t r = 0; r < schedule.runs.size(); ++r) {
      StepRun& run = schedule.runs[r];
      for (size_t i = limited.runs[r].waits.size(); i < run.waits.size();
           ++i, ++waits) {
        const std::vector<int> all = run.waits;
        run.waits.erase(run.waits.begin() + i);
        EXPECT_FALSE(VerifyLifetimes(schedule, plan).ok())
            << "seed " << seed << ", run " << r;
        run.waits = all;
      }
    }
  }
  EXPECT_GT(waits, 2'000);
}

constexpr int64_t kSectionBytes = kSizes.width * kSizes.width * 4;

// Products that read these weights in turn. `loss` is the sum of the last one.
struct Products {
  explicit Products(const std::vector<int>& read) {
    ProgramBuilder b(CpuTarget());
    std::vector<Weight> weights;
    for (int w = 0; w <= *absl::c_max_element(read); ++w) {
      weights.push_back(
          Matrix(b, absl::StrCat(w, ".weight"), kSizes.width, kSizes.width));
    }
    Value y = b.Input("x", {{kSizes.rows, kSizes.width}, at::kFloat});
    for (const int w : read) y = Product(b, y, weights[w]);
    loss = Total(b, y);
    b.Output(loss);
    program.emplace(std::move(b).Build().value());
  }

  // Divides each weight between two ranks, as a section.
  void AddSections(Schedule* schedule) const {
    for (size_t w = 0; w < program->parameters().size(); ++w) {
      const int64_t begin = static_cast<int64_t>(w) * kSectionBytes;
      schedule->gradients.push_back({begin, begin + kSectionBytes});
    }
    const size_t sections = schedule->gradients.size();
    schedule->shards = {.sections = schedule->gradients,
                        .divisible = std::vector<bool>(sections, true),
                        .sharding = {.shards = 2}};
  }

  std::optional<Program> program;
  Value loss;
};

// The number of sections that a forward pass gathers.
int GatheredSections(const std::vector<int>& read) {
  const Products made(read);
  Schedule schedule = ForwardSchedule(*made.program);
  made.AddSections(&schedule);
  ShardWeights(&schedule, {.kind = Task::Kind::kUnshard}, /*depth=*/2);
  return static_cast<int>(
      absl::c_count_if(schedule.runs, [&](const StepRun& run) {
        return schedule.IsTask(run, Task::Kind::kUnshard);
      }));
}

TEST(RewritesTest, WeightsStayGatheredWhileOneOtherSectionIsRead) {
  EXPECT_EQ(GatheredSections({0, 0}), 1);
  EXPECT_EQ(GatheredSections({0, 1, 0, 1, 0}), 2);
  EXPECT_EQ(GatheredSections({0, 1, 2, 0}), 4);
}

TEST(RewritesTest, GradientsBeginWhenAllSumsButTheLastHaveEnded) {
  const Products made({0, 1, 2, 3, 4});
  ScheduleBuilder list(*made.program, /*micro_batches=*/1);
  list.Forward(0, made.loss);
  list.Backward(0);
  for (int64_t section = 0; section < 5; ++section) {
    const int64_t begin = section * kSectionBytes;
    list.Add(
        {.kind = Task::Kind::kReduce, .range = {begin, begin + kSectionBytes}},
        Phase::kReduce);
  }
  Schedule schedule = std::move(list).Build();
  made.AddSections(&schedule);
  ShardGradients(&schedule);
  std::vector<int> sums;  // runs
  int waits = 0;
  for (size_t r = 0; r < schedule.runs.size(); ++r) {
    const StepRun& run = schedule.runs[r];
    for (const int wait : run.waits) {
      ++waits;
      ASSERT_GE(sums.size(), 2u);
      EXPECT_EQ(wait, sums[sums.size() - 2]);
    }
    if (schedule.IsTask(run, Task::Kind::kReduce)) {
      sums.push_back(static_cast<int>(r));
    }
  }
  EXPECT_EQ(sums.size(), 5u);
  EXPECT_EQ(waits, 3);
}

// Trains with a list. It stands for one of two ranks with equal gradients, and
// does the other's part where they divide the state.
class Training : public TaskRunner {
 public:
  Training(const RandomProgram& made, const Schedule& schedule,
           const Lifetimes& lifetimes)
      : schedule_(schedule),
        store_(ParameterStore::Create(
                   made.program->parameters(),
                   {.seed = 3,
                    .sharding = {.shards = schedule.shards.sharding.shards}})
                   .value()),
        squares_(store_->grad(), schedule.gradients, schedule.shards),
        summed_(store_->grad().clone()),
        all_squares_(summed_, schedule.gradients, Whole(schedule.shards)),
        executor_(schedule, lifetimes, *store_, {.tasks = this}) {
    executor_.SetInput(schedule.loss_gradient, at::zeros({}));
    for (int m = 0; m < schedule.listed_micro_batches(); ++m) {
      executor_.SetInput(
          schedule.ValueOf(made.x, m),
          at::linspace(-1, 1 + m, kSizes.rows * kSizes.width, at::kFloat)
              .view({kSizes.rows, kSizes.width}));
    }
  }

  // The losses and gradient norms of some steps, then the weights.
  std::vector<at::Tensor> Run(int steps) {
    std::vector<at::Tensor> results;
    for (int i = 0; i < steps; ++i) {
      executor_.Run();
      results.insert(results.end(), {loss_.clone(), norm_.clone()});
    }
    if (schedule_.starts_pending) {
      for (const StepRun& run : schedule_.runs) {
        if (schedule_.IsTask(run, Task::Kind::kUpdate) ||
            schedule_.IsTask(run, Task::Kind::kGather)) {
          Run(schedule_.tasks[run.task], {}, {});
        }
      }
    }
    results.push_back(store_->weights().master);
    return results;
  }

 private:
  void Run(const Task& task, absl::Span<const at::Tensor> operands,
           absl::Span<const at::Tensor> results) override {
    switch (task.kind) {
      case Task::Kind::kBegin:
        loss_.zero_();
        results[1].fill_(0.5);
        break;
      case Task::Kind::kAddLoss:
      case Task::Kind::kAddWeightedLoss:
        loss_.add_(operands[0]);
        break;
      case Task::Kind::kReduce:
        Part(store_->grad(), task.range).mul_(2);
        Part(summed_, task.range).copy_(Part(store_->grad(), task.range));
        if (task.own_part) {
          ForOtherParts(task.range, [&](const GradientRange& part) {
            Part(store_->grad(), part).fill_(NAN);
          });
        }
        break;
      case Task::Kind::kReduceLoss:
        loss_.mul_(2);
        break;
      case Task::Kind::kReduceSquares:
        ThrowIfError(all_squares_.SumSegments(
            {0, static_cast<int64_t>(summed_.nbytes())}));
        squares_.sums().copy_(at::where(squares_.sums() == 0,
                                        all_squares_.sums(), squares_.sums()));
        break;
      case Task::Kind::kZero:
        for (const int parameter : schedule_.without_gradient) {
          store_->Get(schedule_.program->parameters()[parameter].name)
              .grad()
              .zero_();
        }
        store_->ZeroGradientGaps();
        ZeroGapsOf(summed_);
        break;
      case Task::Kind::kSumOfSquares:
        ThrowIfError(squares_.SumSegments(task.range));
        break;
      case Task::Kind::kClip:
        norm_ = squares_.Total().value().sqrt();
        factor_ = 0.1 / (1 + norm_);
        break;
      case Task::Kind::kUpdate:
        Update(store_->grad(), task.own_part
                                   ? schedule_.shards.HeldPart(task.range)
                                   : task.range);
        break;
      case Task::Kind::kUnshard:
        FAIL() << "stages 2 and 3 are not simulated";
      case Task::Kind::kGather:
        ForOtherParts(task.range, [&](const GradientRange& part) {
          Update(summed_, part);
        });
        break;
    }
  }

  static at::Tensor Part(const at::Tensor& flat, const GradientRange& range) {
    return flat.slice(0, range.begin / 4, range.end / 4);
  }
  static GradientShards Whole(GradientShards shards) {
    shards.sharding.zero = 0;
    return shards;
  }
  template <typename Fn>
  void ForOtherParts(const GradientRange& section, const Fn& fn) {
    const GradientShards& shards = schedule_.shards;
    for (int shard = 0; shard < shards.sharding.shards; ++shard) {
      if (shard != shards.sharding.index) fn(shards.PartOf(section, shard));
    }
  }
  // What is zero in a store's gradients.
  void ZeroGapsOf(const at::Tensor& summed) {
    at::Tensor kept = at::zeros_like(summed);
    for (size_t p = 0; p < schedule_.gradients.size(); ++p) {
      const GradientRange& range = schedule_.gradients[p];
      if (range.empty() || absl::c_linear_search(schedule_.without_gradient,
                                                 static_cast<int>(p))) {
        continue;
      }
      Part(kept, range).copy_(Part(summed, range));
    }
    at::Tensor(summed).copy_(kept);
  }
  void Update(const at::Tensor& gradients, const GradientRange& range) {
    Part(store_->weights().master, range)
        .sub_(Part(gradients, range) * factor_);
  }

  const Schedule& schedule_;
  const std::unique_ptr<ParameterStore> store_;
  SumOfSquares squares_;
  at::Tensor summed_;  // the gradients of both ranks
  SumOfSquares all_squares_;
  at::Tensor loss_ = at::zeros({}), norm_ = at::zeros({1});
  at::Tensor factor_ = at::zeros({1});  // nothing is pending at first
  Executor executor_;
};

// 500 programs train three steps with the same losses, norms and weights, bit
// for bit, whatever the rewrites and the storage.
TEST(RewritesTest, RandomProgramsTrainWithTheBitsOfThePlainList) {
  constexpr int kSteps = 3;
  int trained = 0;
  for (int seed = 0; seed < 500; ++seed) {
    RandomProgram made(seed, kSizes);
    const int micro_batches = 1 + made.Draw(3);
    const Sharding sharding = RandomSharding(made);
    const Schedule plain =
        StepOf(*made.program, made.loss, micro_batches, sharding);
    const std::vector<at::Tensor> expected =
        Training(made, plain, PlanLifetimes(plain)).Run(kSteps);
    trained += expected.back().numel() > 0;
    const std::vector<RecomputedSegment> segments = made.SomeSegments();
    for (const bool all : {true, false}) {
      const auto chance = [&] { return all || made.Draw(2) == 0; };
      const Rewrites rewrites = {.recompute = segments,
                                 .overlap = chance(),
                                 .reduce = chance(),
                                 .defer = chance(),
                                 .zero = chance()};
      const Schedule schedule = Rewritten(plain, rewrites);
      const Lifetimes lifetimes = PlanLifetimes(
          schedule, {.lend_gradients = chance(), .arena = chance()});
      const std::vector<at::Tensor> found =
          Training(made, schedule, lifetimes).Run(kSteps);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_TRUE(at::equal(found[i], expected[i]))
            << "seed " << seed << ", shards " << sharding.shards << ", index "
            << sharding.index << ", rewrites " << rewrites.overlap
            << rewrites.reduce << rewrites.defer << rewrites.zero << ", result "
            << i << ": " << found[i] << " instead of " << expected[i];
      }
    }
  }
  EXPECT_GT(trained, 400);
}

}  // namespace
}  // namespace tessera::testing
