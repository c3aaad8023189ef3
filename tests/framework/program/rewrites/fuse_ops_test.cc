#include "framework/program/rewrites/fuse_ops.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/program/executor.h"
#include "framework/program/lifetime.h"
#include "framework/program/memory.h"
#include "framework/program/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;

// x + 1
class Increment : public Op {
 public:
  absl::string_view kind() const override { return "increment"; }
  std::string kernel() const override { return "ATen"; }
  void Forward(const ForwardArgs& args) const override {
    at::add_out(args.results[0], args.operands[0], at::ones({}));
  }
  void Backward(const BackwardArgs& args) const override {
    WriteGrad(args.d_operands[0], args.d_results[0]);
  }
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
};

// 2 (x + 1), and x + 1 if it `keeps` that.
class DoubledIncrement : public Op {
 public:
  explicit DoubledIncrement(bool keeps) : keeps_(keeps) {}
  absl::string_view kind() const override { return "doubled_increment"; }
  std::string kernel() const override { return "ATen"; }
  void Forward(const ForwardArgs& args) const override {
    const at::Tensor sum = args.operands[0] + 1;
    if (keeps_) args.results[0].copy_(sum);
    at::Tensor doubled = args.results[keeps_ ? 1 : 0];
    at::mul_out(doubled, sum, at::full({}, 2));
  }
  void Backward(const BackwardArgs& args) const override {
    at::Tensor gradient = 2 * args.d_results[keeps_ ? 1 : 0];
    if (keeps_ && args.d_results[0].defined()) gradient += args.d_results[0];
    WriteGrad(args.d_operands[0], gradient);
  }
  BackwardReads ReadsInBackward(Positions) const override { return {}; }

 private:
  const bool keeps_;
};

// 2 x, which joins the increment before it.
class Double : public Op {
 public:
  explicit Double(bool keeps) : keeps_(keeps) {}
  absl::string_view kind() const override { return "double"; }
  std::string kernel() const override { return "ATen"; }
  void Forward(const ForwardArgs& args) const override {
    at::mul_out(args.results[0], args.operands[0], at::full({}, 2));
  }
  void Backward(const BackwardArgs& args) const override {
    WriteGrad(args.d_operands[0], 2 * args.d_results[0]);
  }
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
  FusedOp FuseWith(const Op& producer, int) const override {
    if (producer.kind() != "increment") return {};
    return {.op = std::make_unique<DoubledIncrement>(keeps_),
            .fusion = Fusion::kResidualNorm,
            .of_producer = keeps_ ? Positions{0} : Positions{},
            .of_reader = {0}};
  }

 private:
  const bool keeps_;
};

// The sum of squares, whose backward runs with its forward.
class JoinedLoss : public Op {
 public:
  absl::string_view kind() const override { return "joined_loss"; }
  std::string kernel() const override { return "ATen"; }
  void Forward(const ForwardArgs& args) const override {
    args.results[0].copy_(args.operands[0].square().sum());
  }
  void Backward(const BackwardArgs&) const override { FAIL(); }
  bool joins_backward() const override { return true; }
  void ForwardBackward(const BackwardArgs& args) const override {
    at::Tensor loss = args.results[0];
    loss.copy_(args.operands[0].square().sum());
    WriteGrad(args.d_operands[0], 2 * args.operands[0] * args.d_results[0]);
  }
  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {0}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, 0}};
  }
};

const TensorType kType = {{2, 3}, at::kFloat};

struct Made {
  Program program;
  Value x, sum, y, loss;
};

// loss = joined_loss(2 (x W^T + 1)); the increment and the double in scopes of
// their own.
Made Make(bool keeps, bool reads_sum = false) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", kType, /*needs_grad=*/true);
  const Weight w = Matrix(b, "w", 3, 3);
  Value sum, y;
  {
    const ProgramBuilder::Scope scope(b, "first");
    const Value product = Product(b, x, w);
    sum = b.Add(std::make_unique<Increment>(), "increment", {product},
                {kType})[0];
  }
  {
    const ProgramBuilder::Scope scope(b, "second");
    y = b.Add(std::make_unique<Double>(keeps), "double", {sum}, {kType})[0];
  }
  const Value doubled = y;
  if (reads_sum) y = Sum(b, sum, y);
  const Value loss =
      b.Add(std::make_unique<JoinedLoss>(), "loss", {y}, {{{}, at::kFloat}})[0];
  b.Output(loss);
  return {std::move(b).Build().value(), x, sum, doubled, loss};
}

bool Always(Fusion, const OpNode&, const OpNode&) { return true; }

std::vector<std::string> NamesOfOps(const Program& program) {
  std::vector<std::string> names;
  for (const OpNode& node : program.ops()) names.push_back(node.name);
  return names;
}

struct Outcome {
  float loss = 0;
  at::Tensor dx, dw;
};

Outcome RunProgram(const Program& program, Value x, Value loss) {
  const Schedule schedule = TrainingSchedule(program, loss);
  const auto store = ParameterStore::Create(program.parameters(), {}).value();
  Executor executor(schedule, PlanLifetimes(schedule), *store);
  executor.SetInput(x, at::arange(6, at::kFloat).view({2, 3}));
  executor.SetInput(schedule.loss_gradient, at::full({}, 0.5));
  executor.Run();
  return {executor.Get(loss).item<float>(),
          executor.Get(schedule.input_gradients[0].gradient).clone(),
          store->grad().clone()};
}

void ExpectSame(const Outcome& a, const Outcome& b) {
  EXPECT_FLOAT_EQ(a.loss, b.loss);
  EXPECT_TRUE(at::allclose(a.dx, b.dx));
  EXPECT_TRUE(at::allclose(a.dw, b.dw));
}

TEST(FuseTest, JoinsAnOpWithTheOneThatReadsIt) {
  for (const bool keeps : {false, true}) {
    Made made = Make(keeps);
    const Outcome before = RunProgram(made.program, made.x, made.loss);
    const FusedProgram fused = FuseOps(std::move(made.program), Always);
    EXPECT_THAT(NamesOfOps(fused.program),
                ElementsAre("first/w", "first/increment+double", "loss"));
    EXPECT_EQ(fused.renumbered[made.sum.index].defined(), keeps);
    EXPECT_EQ(fused.program.info(fused.renumbered[made.y.index]).name,
              "second/double");
    ASSERT_EQ(fused.program.scopes().size(), 3u);
    EXPECT_EQ(fused.program.scopes()[1].end_op, 2);
    EXPECT_EQ(fused.program.scopes()[2].first_op, 2);
    EXPECT_EQ(fused.program.scopes()[2].end_op, 2);
    EXPECT_EQ(fused.program.scopes()[0].end_op, 3);
    ExpectSame(RunProgram(fused.program, fused.renumbered[made.x.index],
                          fused.renumbered[made.loss.index]),
               before);
  }
}

TEST(FuseTest, AValueWithAnotherReaderStays) {
  Made vanishing = Make(/*keeps=*/false, /*reads_sum=*/true);
  EXPECT_EQ(FuseOps(std::move(vanishing.program), Always).program.ops().size(),
            5u);
  Made kept = Make(/*keeps=*/true, /*reads_sum=*/true);
  const Outcome before = RunProgram(kept.program, kept.x, kept.loss);
  const FusedProgram fused = FuseOps(std::move(kept.program), Always);
  EXPECT_EQ(fused.program.ops().size(), 4u);
  ExpectSame(RunProgram(fused.program, fused.renumbered[kept.x.index],
                        fused.renumbered[kept.loss.index]),
             before);
}

TEST(FuseTest, AnOutputStays) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", kType, /*needs_grad=*/true);
  const Value sum =
      b.Add(std::make_unique<Increment>(), "increment", {x}, {kType})[0];
  b.Add(std::make_unique<Double>(/*keeps=*/false), "double", {sum}, {kType});
  b.Output(sum);
  const FusedProgram fused = FuseOps(std::move(b).Build().value(), Always);
  EXPECT_THAT(NamesOfOps(fused.program), ElementsAre("increment", "double"));
  EXPECT_THAT(fused.program.outputs(),
              ElementsAre(fused.renumbered[sum.index]));
}

TEST(FuseTest, OnlyWhatIsWanted) {
  Made made = Make(/*keeps=*/false);
  const std::vector<std::string> names = NamesOfOps(made.program);
  const FusedProgram same =
      FuseOps(std::move(made.program),
              [](Fusion fusion, const OpNode& producer, const OpNode& reader) {
                EXPECT_EQ(producer.name, "first/increment");
                EXPECT_EQ(reader.name, "second/double");
                return fusion != Fusion::kResidualNorm;
              });
  EXPECT_EQ(NamesOfOps(same.program), names);
  for (size_t v = 0; v < same.renumbered.size(); ++v) {
    EXPECT_EQ(same.renumbered[v].index, static_cast<int>(v));
  }
}

TEST(ScheduleTest, ALossMayRunOnceForBothPasses) {
  const Made made = Make(/*keeps=*/false);
  const Schedule schedule = TrainingSchedule(made.program, made.loss);
  EXPECT_EQ(schedule.FirstBackward(), 3);
  EXPECT_EQ(schedule.runs[3].kind, StepRun::Kind::kForwardBackward);
  EXPECT_EQ(PhaseName(schedule.runs[3].phase), "backward");
  EXPECT_EQ(DescribeRun(schedule, 3), "the backward of loss");
  // Its gradient takes the place of what it reads.
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  EXPECT_EQ(lifetimes.written_over[schedule.runs[3].d_operands[0].value],
            made.y.index);
  // Without a backward pass it is an op like others.
  EXPECT_EQ(ForwardSchedule(made.program).runs[3].kind,
            StepRun::Kind::kForward);
}

}  // namespace
}  // namespace tessera::testing
