#include "framework/program/executor.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "framework/base/torch_status.h"
#include "framework/program/autograd_op.h"
#include "framework/program/lifetime.h"
#include "framework/program/memory.h"
#include "framework/program/program.h"
#include "framework/program/rewrites/overlap_weight_gradients.h"
#include "framework/program/rewrites/recompute.h"
#include "framework/program/schedule.h"
#include "framework/program/stream_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/random_program.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"
#include "tests/testing/recording_observer.h"

namespace tessera::testing {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;

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
  Schedule recomputed = plain;
  Recompute(made.SomeSegments(), &recomputed);
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
  Schedule schedule = TrainingSchedule(program, made.loss);
  Recompute(made.SomeSegments(), &schedule);
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  Executor executor(schedule, lifetimes, *store);
  executor.SetInput(made.x, at::ones({kRows, kWidth}));
  executor.Run(0, schedule.FirstBackward());
  EXPECT_EQ(executor.live_bytes(), KeptBytes(schedule, lifetimes));
}

// Leaves the values of tasks as they are.
class NoTasks : public TaskRunner {
  void Run(const Task&, absl::Span<const at::Tensor>,
           absl::Span<const at::Tensor>) override {}
};

// Weights that a rank gathers are not kept for backward.
TEST_P(RandomProgramTest, KeepsNoGatheredWeights) {
  constexpr int64_t kWide = 32;  // weights are large enough to divide
  RandomProgram made(GetParam(), {kRows, kWide});
  const Program& program = *made.program;
  const Sharding sharding = {.shards = 2};
  const auto store = ParameterStore::Create(program.parameters(),
                                            {.seed = 3, .sharding = sharding})
                         .value();
  const Schedule schedule =
      Rewritten(StepOf(program, made.loss, /*micro_batches=*/1, sharding),
                {.recompute = made.SomeSegments(), .zero = 3});
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  NoTasks tasks;
  Executor executor(schedule, lifetimes, *store, {.tasks = &tasks});
  executor.SetInput(made.x, at::ones({kRows, kWide}));
  executor.Run(0, schedule.FirstBackward());
  EXPECT_EQ(executor.live_bytes(), KeptBytes(schedule, lifetimes));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomProgramTest, ::testing::Range(0, 60));

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
    Schedule schedule = TrainingSchedule(program, loss);
    Recompute({segment}, &schedule);
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

TEST(ExecutorTest, RecomputationIsAPhaseOfBackward) {
  const Built built = TwoLayers();
  const ProgramScope& one = built.program.scopes()[1];
  Schedule schedule = TrainingSchedule(built.program, built.loss);
  Recompute({{one.first_op, one.end_op}}, &schedule);
  const auto store =
      ParameterStore::Create(built.program.parameters(), {}).value();
  RecordingObserver phases;
  Executor executor(schedule, PlanLifetimes(schedule), *store,
                    {.phases = &phases});
  executor.SetInput(built.x, at::ones({kRows, kWidth}));
  executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
  executor.Run();
  EXPECT_THAT(phases.paths(), IsSupersetOf({"forward/one/square",
                                            "backward/recompute/one/square",
                                            "backward/one/one"}));
  EXPECT_THAT(phases.paths(), Not(Contains("recompute")));
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

// Dropout draws the same numbers in the backward pass and when its segment is
// recomputed, and leaves the generator as a single pass would.
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
    Schedule schedule = TrainingSchedule(program, loss);
    if (recompute) Recompute({{scope.first_op, scope.end_op}}, &schedule);
    const auto store = ParameterStore::Create({}, {}).value();
    Executor executor(schedule, PlanLifetimes(schedule), *store);
    executor.SetInput(x, at::ones({kRows, kWidth}));
    executor.SetInput(schedule.loss_gradient, at::scalar_tensor(1, at::kFloat));
    at::manual_seed(7);
    executor.Run();
    const at::Tensor gradient =
        executor.Get(schedule.input_gradients[0].gradient).clone();
    // An element that the forward pass kept is 2: it adds 4 to the loss, and
    // its gradient is 8.
    EXPECT_EQ(gradient.sum().item<float>(),
              2 * executor.Get(loss).item<float>());
    return std::pair(gradient, at::rand({4}));
  };
  const auto [kept, after_kept] = run(false);
  const auto [again, after_again] = run(true);
  EXPECT_TRUE(at::equal(kept, again));
  EXPECT_TRUE(at::equal(after_kept, after_again));
  EXPECT_GT(kept.ne(0).sum().item<int>(), 0);
  EXPECT_GT(kept.eq(0).sum().item<int>(), 0);
}

}  // namespace
}  // namespace tessera::testing
