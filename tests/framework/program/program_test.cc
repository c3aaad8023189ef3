// Tests programs, schedules, lifetimes and execution with small ops and random
// programs of them.

#include "framework/program/program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/torch_status.h"
#include "framework/program/autograd_op.h"
#include "framework/program/executor.h"
#include "framework/program/lifetime.h"
#include "framework/program/memory.h"
#include "framework/program/offset_allocator.h"
#include "framework/program/printer.h"
#include "framework/program/rewrites/overlap_weight_gradients.h"
#include "framework/program/schedule.h"
#include "framework/program/stream_order.h"
#include "framework/program/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/random_program.h"
#include "tests/framework/program/test_ops.h"
#include "tests/testing/recording_observer.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kRows = 6, kWidth = 8;

// "forward product", "backward product dx dw", "add".
std::vector<std::string> Names(const Schedule& schedule) {
  std::vector<std::string> names;
  for (const StepRun& run : schedule.runs) {
    const OpNode& node = schedule.program->ops()[run.op];
    std::string name =
        run.kind == StepRun::Kind::kAdd
            ? "add"
            : absl::StrCat(PhaseName(run.phase), " ", node.op->kind());
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      if (run.d_operands[i].wanted()) absl::StrAppend(&name, " d", i);
    }
    names.push_back(std::move(name));
  }
  return names;
}

struct Built {
  Program program;
  Value x, loss;
};

// loss = total(square(x W1^T) W2^T), in one scope for each product.
Built TwoLayers(const ProgramTarget& target = CpuTarget()) {
  ProgramBuilder b(target);
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Value y = x;
  for (const char* name : {"one", "two"}) {
    const ProgramBuilder::Scope scope(b, name);
    y = Product(b, Square(b, y),
                Matrix(b, absl::StrCat(name, ".weight"), kWidth, kWidth));
  }
  const Value loss = Total(b, y);
  b.Output(loss);
  return {std::move(b).Build().value(), x, loss};
}

TEST(ScheduleTest, BackwardVisitsTheOpsInReverseAndSkipsConstants) {
  const Built built = TwoLayers();
  const Schedule schedule = TrainingSchedule(built.program, built.loss);
  EXPECT_THAT(
      Names(schedule),
      ElementsAre("forward square", "forward product", "forward square",
                  "forward product", "forward total", "backward total d0",
                  "backward product d0 d1", "backward square d0",
                  // x is a constant, so its square gets no gradient.
                  "backward product d1"));
  EXPECT_EQ(schedule.FirstBackward(), 5);
  EXPECT_THAT(schedule.without_gradient, IsEmpty());
}

TEST(ScheduleTest, FrozenParametersGetNoGradient) {
  ProgramTarget target = CpuTarget();
  target.frozen = {"one.*"};
  const Built built = TwoLayers(target);
  EXPECT_THAT(Names(TrainingSchedule(built.program, built.loss)),
              ElementsAre("forward square", "forward product", "forward square",
                          "forward product", "forward total",
                          "backward total d0", "backward product d1"));
}

TEST(ScheduleTest, RecomputesOnlyWhatBackwardReads) {
  const Built built = TwoLayers();
  std::vector<RecomputedSegment> segments;
  for (const ProgramScope& scope : built.program.scopes()) {
    if (scope.parent == 0) segments.push_back({scope.first_op, scope.end_op});
  }
  const Schedule schedule =
      TrainingSchedule(built.program, built.loss, segments);
  // No backward reads the results of the products.
  EXPECT_THAT(Names(schedule),
              ElementsAre("forward square", "forward product", "forward square",
                          "forward product", "forward total",
                          "backward total d0", "recompute square",
                          "backward product d0 d1", "backward square d0",
                          "recompute square", "backward product d1"));
  // Between the passes, only the inputs of segments and the loss are kept; the
  // first input belongs to the caller.
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  EXPECT_EQ(KeptBytes(schedule, lifetimes), kRows * kWidth * 4 + 4);
}

TEST(ScheduleTest, ASegmentsLastStepRunsAgainIfItsBackwardReadsItsResult) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
  const Value loss = Total(b, Exponential(b, Square(b, x)));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = TrainingSchedule(program, loss, {{0, 2}});
  EXPECT_THAT(
      Names(schedule),
      ElementsAre("forward square", "forward exp", "forward total",
                  "backward total d0", "recompute square", "recompute exp",
                  "backward exp d0", "backward square d0"));
  // Its backward reads what was recomputed, so only the loss is kept.
  EXPECT_EQ(schedule.runs[6].results, schedule.runs[5].results);
  EXPECT_EQ(KeptBytes(schedule, PlanLifetimes(schedule)), 4);
}

TEST(ScheduleTest, AValueWithTwoReadersGetsTheSumOfTheirGradients) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
  const Value square = Square(b, x);
  const Value exponential = Exponential(b, x);
  const Value loss = Total(b, Sum(b, square, exponential));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = TrainingSchedule(program, loss);
  EXPECT_THAT(Names(schedule),
              ElementsAre("forward square", "forward exp", "forward sum",
                          "forward total", "backward total d0",
                          "backward exp d0", "backward square d0", "add"));
  ASSERT_EQ(schedule.input_gradients.size(), 1u);
  EXPECT_EQ(schedule.input_gradients[0].input, x.index);
}

TEST(ScheduleTest, AccumulatesTheGradientOfATiedWeight) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Weight w = Matrix(b, "w", kWidth, kWidth);
  const Value loss = Total(b, Product(b, Product(b, x, w), w));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  std::vector<bool> accumulates;
  for (const StepRun& run : TrainingSchedule(program, loss).runs) {
    for (const GradientWrite& write : run.d_operands) {
      if (write.parameter >= 0) accumulates.push_back(write.accumulate);
    }
  }
  EXPECT_THAT(accumulates, ElementsAre(false, true));
}

// The runs that are not of the main stream.
std::vector<int> RunsBeside(const Schedule& schedule) {
  std::vector<int> beside;
  for (size_t i = 0; i < schedule.runs.size(); ++i) {
    if (schedule.runs[i].stream != StepStream::kMain) {
      beside.push_back(static_cast<int>(i));
    }
  }
  return beside;
}

// What each run waits for, by its number.
std::map<int, std::vector<int>> WaitsOf(const Schedule& schedule) {
  std::map<int, std::vector<int>> waits;
  for (size_t i = 0; i < schedule.runs.size(); ++i) {
    const std::vector<int>& of_run = schedule.runs[i].waits;
    if (!of_run.empty()) waits[static_cast<int>(i)] = of_run;
  }
  return waits;
}

TEST(ScheduleTest, AtMostTwoWeightGradientsAreUnderWay) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Value y = x;
  for (const char* name : {"a", "b", "c", "d"}) {
    y = Product(b, y, Matrix(b, name, kWidth, kWidth));
  }
  const Value loss = Total(b, y);
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  Schedule schedule = TrainingSchedule(program, loss);
  OverlapWeightGradients(&schedule);
  AddDataWaits(&schedule);
  EXPECT_THAT(
      Names(schedule),
      ElementsAre("forward product", "forward product", "forward product",
                  "forward product", "forward total", "backward total d0",
                  "backward product d1", "backward product d0",
                  "backward product d1", "backward product d0",
                  "backward product d1", "backward product d0",
                  // Nothing is left to overlap it with.
                  "backward product d1"));
  EXPECT_THAT(RunsBeside(schedule), ElementsAre(6, 8, 10));
  // Each waits for the gradient that it reads, and the run beside the third for
  // the first.
  EXPECT_THAT(WaitsOf(schedule),
              ElementsAre(Pair(6, ElementsAre(5)), Pair(8, ElementsAre(7)),
                          Pair(10, ElementsAre(9)), Pair(11, ElementsAre(6))));
  const StreamOrder order(schedule);
  EXPECT_EQ(order.JoinedAt(6), 11);
  EXPECT_EQ(order.JoinedAt(8), 13);
  EXPECT_EQ(order.LastOnMain(8), 7);
  EXPECT_TRUE(order.IsBefore(6, 12));
  EXPECT_FALSE(order.IsBefore(8, 12));
  // The gradient of an activation reads the weight only.
  EXPECT_THAT(schedule.runs[7].operands[0], -1);
  EXPECT_THAT(schedule.runs[6].operands[1], -1);
}

TEST(ScheduleTest, ATiedWeightsGradientsKeepTheirOrder) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Weight w = Matrix(b, "w", kWidth, kWidth);
  const Value loss = Total(b, Product(b, Product(b, x, w), w));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  Schedule schedule = TrainingSchedule(program, loss);
  OverlapWeightGradients(&schedule);
  AddDataWaits(&schedule);
  ASSERT_THAT(RunsBeside(schedule), ElementsAre(4));
  // The last run adds to what that one has written.
  EXPECT_THAT(WaitsOf(schedule),
              ElementsAre(Pair(4, ElementsAre(3)), Pair(6, ElementsAre(4))));
}

TEST(ProgramBuilderTest, FrozenPatternsMustMatchWholeBlocks) {
  ProgramTarget target = CpuTarget();
  target.frozen = {"none.*"};
  ProgramBuilder b(target);
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Product(b, x, Matrix(b, "w", kWidth, kWidth));
  EXPECT_THAT(std::string(std::move(b).Build().status().message()),
              HasSubstr("'none.*' matches no parameter; names look like w"));
  target.frozen = {"q"};
  ProgramBuilder fused(target);
  const Value y = fused.Input("x", {{kRows, kWidth}, at::kFloat});
  Product(
      fused, y,
      fused.Parameter({.name = "qk",
                       .members = {{"q", {kWidth, kWidth}, Init::kLinear},
                                   {"k", {kWidth, kWidth}, Init::kLinear}}}));
  EXPECT_THAT(std::string(std::move(fused).Build().status().message()),
              HasSubstr("only part of qk"));
}

TEST(ProgramBuilderDeathTest, ParametersAreReadInTheOrderOfTheirGradients) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Matrix(b, "first", kWidth, kWidth);
  const Weight second = Matrix(b, "second", kWidth, kWidth);
  EXPECT_DEATH(Product(b, x, second), "second is read before first");
}

TEST(OffsetAllocatorTest, LowestAndHighest) {
  OffsetAllocator free(/*capacity=*/2048);
  EXPECT_EQ(free.TakeLowest(100), 0);
  EXPECT_EQ(free.TakeHighest(300), 1536);
  EXPECT_EQ(free.TakeLowest(1280), 256);
  EXPECT_EQ(free.TakeLowest(1), std::nullopt);
  free.Free(256, 1280);
  EXPECT_EQ(
      free.TakeLowest(1, [](int64_t at) { return std::max<int64_t>(at, 300); }),
      512);
  EXPECT_EQ(free.TakeLowest(1, [](int64_t) { return std::nullopt; }),
            std::nullopt);
  // 512 would be the next multiple of 256 after 300, but is not allowed.
  EXPECT_EQ(free.TakeLowest(1,
                            [](int64_t at) {
                              return at <= 300 ? 300
                                               : std::max<int64_t>(at, 800);
                            }),
            1024);
  free.Free(0, 100);
  EXPECT_EQ(free.TakeLowest(512), 0);
  EXPECT_EQ(free.extent(), 2048);
}

struct Gradients {
  at::Tensor loss, dx, parameters;
};

Gradients RunProgram(const Schedule& schedule, Lifetimes lifetimes, Value x,
                     Value loss, ParameterStore& store) {
  Executor executor(schedule, std::move(lifetimes), store);
  executor.SetInput(
      x, at::linspace(-1, 1, kRows * kWidth, at::kFloat).view({kRows, kWidth}));
  executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
  store.grad().fill_(NAN);
  executor.Run();
  for (const int parameter : schedule.without_gradient) {
    store.Get(schedule.program->parameters()[parameter].name).grad().zero_();
  }
  store.ZeroGradientGaps();
  Gradients gradients = {.loss = executor.Get(loss).clone(),
                         .parameters = store.grad().clone()};
  for (const auto& [input, gradient] : schedule.input_gradients) {
    gradients.dx = executor.Get(gradient).clone();
  }
  return gradients;
}

void ExpectSameBits(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(at::equal(a.loss, b.loss));
  ASSERT_EQ(a.dx.defined(), b.dx.defined());
  if (a.dx.defined()) {
    EXPECT_TRUE(at::equal(a.dx, b.dx));
  }
  EXPECT_TRUE(at::equal(a.parameters, b.parameters))
      << (a.parameters - b.parameters).abs().max();
}

class RandomProgramTest : public ::testing::TestWithParam<int> {};

// Recomputation and storage do not change any bit.
TEST_P(RandomProgramTest, SameBitsForEveryStorage) {
  RandomProgram made(GetParam(), {kRows, kWidth});
  const Program& program = *made.program;
  const auto store =
      ParameterStore::Create(program.parameters(), {.seed = 3}).value();
  Schedule plain = TrainingSchedule(program, made.loss);
  const Gradients expected =
      RunProgram(plain, PlanLifetimes(plain), made.x, made.loss, *store);
  Schedule recomputed =
      TrainingSchedule(program, made.loss, made.SomeSegments());
  Schedule overlapped = recomputed;
  OverlapWeightGradients(&overlapped);
  AddDataWaits(&overlapped);
  for (const auto& [schedule, name] :
       std::vector<std::pair<Schedule*, const char*>>{
           {&plain, ""},
           {&recomputed, "recomputed "},
           {&overlapped, "recomputed overlapped "}}) {
    for (const bool lend : {false, true}) {
      for (const bool arena : {false, true}) {
        SCOPED_TRACE(
            absl::StrCat(name, lend ? "lent " : "", arena ? "arena" : ""));
        schedule->gradients = RangesOf(program);
        const LifetimeOptions options = {.lend_gradients = lend,
                                         .arena = arena};
        ExpectSameBits(expected,
                       RunProgram(*schedule, PlanLifetimes(*schedule, options),
                                  made.x, made.loss, *store));
      }
    }
  }
}

// The gradients are the derivatives of the same function.
TEST_P(RandomProgramTest, GradientsMatchFiniteDifferences) {
  RandomProgram made(GetParam(), {kRows, kWidth});
  const Program& program = *made.program;
  const auto store =
      ParameterStore::Create(program.parameters(), {.seed = 3}).value();
  const Schedule schedule = TrainingSchedule(program, made.loss);
  const Gradients gradients =
      RunProgram(schedule, PlanLifetimes(schedule), made.x, made.loss, *store);
  // Differences along the gradient, in FP32.
  const Schedule forward = ForwardSchedule(program);
  Executor executor(forward, PlanLifetimes(forward), *store);
  const auto loss_at = [&](double step) {
    const at::Tensor x =
        at::linspace(-1, 1, kRows * kWidth, at::kFloat).view({kRows, kWidth});
    executor.SetInput(made.x, gradients.dx.defined()
                                  ? (x + gradients.dx * step).contiguous()
                                  : x);
    if (gradients.parameters.numel() > 0) {
      store->weights()
          .master.narrow(0, 0, gradients.parameters.numel())
          .add_(gradients.parameters, step);
    }
    executor.Run();
    const double loss = executor.Get(made.loss).item<double>();
    if (gradients.parameters.numel() > 0) {
      store->weights()
          .master.narrow(0, 0, gradients.parameters.numel())
          .sub_(gradients.parameters, step);
    }
    return loss;
  };
  double norm = gradients.parameters.square().sum().item<double>();
  if (gradients.dx.defined()) {
    norm += gradients.dx.square().sum().item<double>();
  }
  if (!std::isfinite(norm) || norm > 1e8) return;  // too steep for differences
  const double step = 1e-3 / std::sqrt(norm + 1e-12);
  const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
  EXPECT_NEAR(slope, norm, 0.02 * norm + 0.05 * std::sqrt(norm));
}

// Between the passes the executor holds exactly the planned bytes.
TEST_P(RandomProgramTest, KeepsWhatWasPlanned) {
  RandomProgram made(GetParam(), {kRows, kWidth});
  const Program& program = *made.program;
  const auto store =
      ParameterStore::Create(program.parameters(), {.seed = 3}).value();
  const Schedule schedule =
      TrainingSchedule(program, made.loss, made.SomeSegments());
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  Executor executor(schedule, lifetimes, *store);
  executor.SetInput(made.x, at::ones({kRows, kWidth}));
  executor.Run(0, schedule.FirstBackward());
  EXPECT_EQ(executor.live_bytes(), KeptBytes(schedule, lifetimes));
}

// The bytes of each kind of op add up to those of the moment.
TEST_P(RandomProgramTest, LiveBytesByKindAreThoseOfTheMoment) {
  RandomProgram made(GetParam(), {kRows, kWidth});
  const Program& program = *made.program;
  Schedule schedule = TrainingSchedule(program, made.loss, made.SomeSegments());
  schedule.gradients = RangesOf(program);
  for (const bool lend : {false, true}) {
    const Lifetimes lifetimes =
        PlanLifetimes(schedule, {.lend_gradients = lend});
    for (const MemoryMoment& moment : MemoryOverTime(schedule, lifetimes)) {
      LiveBytes sum;
      for (const auto& [kind, bytes] :
           LiveBytesByKind(schedule, lifetimes, moment.run)) {
        sum.activations += bytes.activations;
        sum.gradients += bytes.gradients;
      }
      EXPECT_EQ(sum.activations, moment.activations) << "run " << moment.run;
      EXPECT_EQ(sum.gradients, moment.gradients) << "run " << moment.run;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomProgramTest, ::testing::Range(0, 60));

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
        schedule_(Rewritten(StepOf(built_.program, built_.loss, 2, {}),
                            {.reduce = true})) {}

  int FirstSum() const {
    const auto found = absl::c_find_if(schedule_.runs, [](const StepRun& run) {
      return run.stream == StepStream::kCommunication;
    });
    return static_cast<int>(found - schedule_.runs.begin());
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
        schedule_(Rewritten(StepOf(built_.program, built_.loss, 1, {}),
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
  schedule_ = StepOf(built_.program, built_.loss, 1, {});
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

// Notes which micro-batches the repeated runs stand for.
class Repetitions : public TaskRunner {
 public:
  void BeginRepetition(Executor&, int micro_batch) override {
    begun.push_back(micro_batch);
  }
  void Run(const Task&, absl::Span<const at::Tensor>,
           absl::Span<const at::Tensor>) override {}

  std::vector<int> begun;
};

TEST(ExecutorTest, MicroBatchesAddToTheFirst) {
  const Built built = TwoLayers();
  const auto store =
      ParameterStore::Create(built.program.parameters(), {}).value();
  at::Tensor once;
  for (const int micro_batches : {1, 2, 3, 6}) {
    SCOPED_TRACE(micro_batches);
    ScheduleBuilder list(built.program, micro_batches);
    for (int m = 0; m < list.listed_micro_batches(); ++m) {
      list.Forward(m, built.loss);
      list.Backward(m);
    }
    const Schedule schedule = std::move(list).Build();
    Repetitions repetitions;
    Executor executor(schedule, PlanLifetimes(schedule), *store,
                      {.tasks = &repetitions});
    executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
    for (int m = 0; m < schedule.listed_micro_batches(); ++m) {
      executor.SetInput(schedule.ValueOf(built.x, m),
                        at::ones({kRows, kWidth}));
    }
    store->grad().fill_(1e6);
    executor.Run();
    store->ZeroGradientGaps();
    if (micro_batches == 1) {
      once = store->grad().clone();
      EXPECT_LT(once.abs().max().item<double>(), 1e5);
    }
    EXPECT_TRUE(at::allclose(store->grad(), micro_batches * once));
    EXPECT_EQ(repetitions.begun, micro_batches < 4 ? std::vector<int>()
                                                   : std::vector({1, 2, 3, 4}));
  }
}

// An op that fails in its forward or backward pass: the error names it, nothing
// stays alive, all phases end, and the next step works.
TEST(ExecutorTest, AFailureNamesTheOpAndLeavesNothingBehind) {
  for (const std::string fails_in : {"forward", "recompute", "backward"}) {
    SCOPED_TRACE(fails_in);
    ProgramBuilder b(CpuTarget());
    const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
    bool fails = true;
    int calls = 0;
    Value y;
    {
      const ProgramBuilder::Scope block(b, "block_3");
      const ProgramBuilder::Scope ffn(b, "ffn");
      const AutogradFunction function = {
          .name = "idea", .function = [&](const std::vector<at::Tensor>& in) {
            const int fatal = fails_in == "forward"     ? 0
                              : fails_in == "recompute" ? 1
                                                        : 2;
            TORCH_CHECK_WITH(OutOfMemoryError, !(fails && calls == fatal),
                             "full");
            ++calls;
            return in[0].sin();
          }};
      // Recomputed as its result is read by the square's backward pass.
      y = Square(b, AutogradOp(b, function, {Square(b, x)}, b.type(x)));
    }
    const Value loss = Total(b, y);
    b.Output(loss);
    const Program program = std::move(b).Build().value();
    const ProgramScope& scope = program.scopes()[1];
    const RecomputedSegment segment = {scope.first_op, scope.end_op};
    const Schedule schedule = TrainingSchedule(program, loss, {segment});
    const auto store = ParameterStore::Create({}, {}).value();
    RecordingObserver phases;
    Executor executor(schedule, PlanLifetimes(schedule), *store,
                      {.phases = &phases});
    executor.SetInput(x, at::ones({kRows, kWidth}));
    executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
    const auto step = [&] {
      return StatusFromTorch([&] {
        const PhaseScope scope(&phases, "step");
        executor.Run();
      });
    };
    EXPECT_EQ(step(), absl::ResourceExhaustedError(absl::StrCat(
                          "op block_3/ffn/idea (", fails_in, "): full")));
    EXPECT_EQ(executor.live_bytes(), 0);
    EXPECT_EQ(phases.depth(), 0);
    fails = false;
    EXPECT_EQ(step(), absl::OkStatus());
    EXPECT_EQ(phases.depth(), 0);
  }
}

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

// x, with a backward pass that throws. Appends the tensors that it was given to
// `given`.
class FailingBackward : public Op {
 public:
  explicit FailingBackward(std::vector<WeakTensor>* given) : given_(given) {}

  absl::string_view kind() const override { return "fails"; }
  std::string kernel() const override { return "test"; }
  void Forward(const ForwardArgs& args) const override {
    args.results[0].copy_(args.operands[0]);
  }
  void Backward(const BackwardArgs& args) const override {
    for (const at::Tensor& t :
         {args.operands[0], args.d_results[0], args.d_operands[0].grad}) {
      TORCH_CHECK(t.defined());
      given_->emplace_back(t.getIntrusivePtr());
    }
    TORCH_CHECK(false, "full");
  }
  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {0}};
  }

 private:
  std::vector<WeakTensor>* const given_;
};

TEST(ExecutorTest, NothingStaysAliveAfterAFailedBackward) {
  std::vector<WeakTensor> given;
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
  const Value square = Square(b, x);
  const Value loss =
      Total(b, Square(b, b.Add(std::make_unique<FailingBackward>(&given),
                               "fails", {square}, {b.type(square)})[0]));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = TrainingSchedule(program, loss);
  const auto store = ParameterStore::Create({}, {}).value();
  Executor executor(schedule, PlanLifetimes(schedule), *store);
  executor.SetInput(x, at::ones({kRows, kWidth}));
  executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
  EXPECT_EQ(StatusFromTorch([&] { executor.Run(); }),
            absl::InternalError("op fails (backward): LibTorch: full"));
  EXPECT_EQ(executor.live_bytes(), 0);
  ASSERT_EQ(given.size(), 3u);
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_TRUE(given[i].expired()) << "tensor " << i;
  }
}

// Dropout draws the same numbers when its segment is recomputed, and leaves the
// generator as a single pass would.
TEST(ExecutorTest, RandomOpsDrawTheSameNumbersAgain) {
  const auto run = [](bool recompute) {
    ProgramBuilder b(CpuTarget());
    const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
    Value y;
    {
      const ProgramBuilder::Scope scope(b, "dropped");
      const Value dropped =
          AutogradOp(b,
                     {.name = "dropout",
                      .function =
                          [](const std::vector<at::Tensor>& in) {
                            return at::dropout(in[0], 0.5, /*train=*/true);
                          },
                      .random = true},
                     {x}, b.type(x));
      y = Square(b, dropped);
    }
    const Value loss = Total(b, y);
    b.Output(loss);
    const Program program = std::move(b).Build().value();
    const ProgramScope& scope = program.scopes()[1];
    std::vector<RecomputedSegment> segments;
    if (recompute) segments.push_back({scope.first_op, scope.end_op});
    const Schedule schedule = TrainingSchedule(program, loss, segments);
    const auto store = ParameterStore::Create({}, {}).value();
    Executor executor(schedule, PlanLifetimes(schedule), *store);
    executor.SetInput(x, at::ones({kRows, kWidth}));
    executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
    at::manual_seed(7);
    executor.Run();
    return std::pair(executor.Get(schedule.input_gradients[0].gradient).clone(),
                     at::rand({4}));
  };
  const auto [kept, after_kept] = run(false);
  const auto [again, after_again] = run(true);
  EXPECT_TRUE(at::equal(kept, again));
  EXPECT_TRUE(at::equal(after_kept, after_again));
  EXPECT_GT(kept.ne(0).sum().item<int>(), 0);
  EXPECT_GT(kept.eq(0).sum().item<int>(), 0);
}

TEST(MemoryTest, ReplayFindsTheLargestMoment) {
  const Built built = TwoLayers();
  const Schedule schedule = TrainingSchedule(built.program, built.loss);
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  const std::vector<MemoryMoment> moments = MemoryOverTime(schedule, lifetimes);
  ASSERT_EQ(moments.size(), schedule.runs.size());
  EXPECT_EQ(moments[0].total(), 512);   // the first square
  EXPECT_EQ(moments[1].total(), 1024);  // and its product

  CachingAllocator allocator;
  for (int pass = 0; pass < 2; ++pass) {
    const std::optional<int> peak =
        ReplayAllocations(schedule, lifetimes, &allocator);
    ASSERT_TRUE(peak.has_value());
    EXPECT_EQ(DescribeRun(schedule, *peak), "the forward of total");
    EXPECT_EQ(allocator.peak_allocated(), moments[*peak].total());
    EXPECT_EQ(allocator.allocated(), 0);
    EXPECT_EQ(allocator.reserved(), 2 << 20);
  }
  CachingAllocator full(/*capacity=*/0);
  EXPECT_EQ(ReplayAllocations(schedule, lifetimes, &full), std::nullopt);
}

TEST(PrinterTest, EqualBlocksAreFolded) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Value y = x;
  for (int i = 0; i < 3; ++i) {
    const ProgramBuilder::Scope scope(b, absl::StrCat("block_", i));
    y = Square(b, Product(b, y,
                          Matrix(b, absl::StrCat("b", i, ".w.weight"), kWidth,
                                 kWidth)));
  }
  const Value loss = Total(b, y);
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = TrainingSchedule(program, loss);
  const std::vector<StepRow> runs_of_step =
      StepRows(schedule, PlanLifetimes(schedule),
               {.product_flops_per_s = 1e12,
                .vector_flops_per_s = 1e12,
                .bytes_per_s = 1e9});
  ASSERT_EQ(runs_of_step.size(), schedule.runs.size());
  EXPECT_EQ(runs_of_step[5].group, "block_2");
  const std::vector<StepRow> rows = FoldBlocks(runs_of_step);
  EXPECT_EQ(rows[0].group, "block_0..1");
  int64_t runs = 0;
  double flops = 0;
  for (const StepRow& row : rows) {
    runs += row.count;
    if (row.phase == "forward") {
      flops += static_cast<double>(row.count) * row.cost.flops;
    }
  }
  EXPECT_EQ(runs, static_cast<int64_t>(schedule.runs.size()));
  EXPECT_EQ(rows[0].count, 2);  // the last block's output is not kept
  EXPECT_EQ(flops, 3 * 2.0 * kRows * kWidth * kWidth);
  const std::string text = FormatStep(rows);
  EXPECT_THAT(text, HasSubstr("FP32 [6, 8]"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("took us")));
  EXPECT_EQ(StepToJson(rows).size(), rows.size());
  EXPECT_FALSE(StepToJson(rows)[0].contains("measured_us"));
}

TEST(PrinterTest, MicroBatchesDoNotKeepTheirValuesTogether) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Value loss =
      Total(b, Square(b, Product(b, x, Matrix(b, "w.weight", kWidth, kWidth))));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const auto totals = [&](int micro_batches) {
    ScheduleBuilder list(program, micro_batches);
    for (int m = 0; m < list.listed_micro_batches(); ++m) {
      list.Forward(m, loss);
      list.Backward(m);
    }
    const Schedule schedule = std::move(list).Build();
    const std::string text =
        FormatStep(StepRows(schedule, PlanLifetimes(schedule), {}));
    return text.substr(text.find("\nall "));
  };
  EXPECT_THAT(totals(1), ContainsRegex("all +6 .* 196 B "));
  EXPECT_THAT(totals(5), ContainsRegex("all +30 .* 196 B "));
}

TEST(PrinterTest, MeasuredTimesAreNextToTheRoofline) {
  std::vector<StepRow> rows;
  for (const double seconds : {3e-6, 5e-6}) {
    rows.push_back({.phase = "forward",
                    .group = absl::StrCat("block_", rows.size()),
                    .name = "w",
                    .kind = "linear",
                    .seconds = 2e-6,
                    .count = 2,
                    .measured_seconds = seconds});
  }
  rows.push_back({.phase = "clip",
                  .name = "norm",
                  .kind = "sum",
                  .seconds = 0,
                  .measured_seconds = 4e-6});
  const std::vector<StepRow> folded = FoldBlocks(rows);
  ASSERT_EQ(folded.size(), 2);
  EXPECT_DOUBLE_EQ(*folded[0].measured_seconds, 4e-6);
  const std::string text = FormatStep(folded);
  EXPECT_THAT(text, HasSubstr("2.0      4.0   2.00"));
  EXPECT_THAT(text, ContainsRegex("linear +4 .* 8.0 +16.0 +2.00\n"));
  EXPECT_THAT(text, ContainsRegex("all +5 .* 8.0 +20.0 +2.50\n"));
  const auto json = StepToJson(folded);
  EXPECT_DOUBLE_EQ(json[0]["measured_us"], 4);
  EXPECT_DOUBLE_EQ(json[0]["measured_to_roofline"], 2);
  EXPECT_TRUE(json[1]["measured_to_roofline"].is_null());

  rows[1].measured_seconds.reset();
  EXPECT_EQ(FoldBlocks(rows)[0].measured_seconds, std::nullopt);
}

}  // namespace
}  // namespace tessera::testing
