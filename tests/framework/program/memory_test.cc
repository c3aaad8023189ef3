#include "framework/program/memory.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/program/caching_allocator.h"
#include "framework/program/lifetime.h"
#include "framework/program/program.h"
#include "framework/program/rewrites/recompute.h"
#include "framework/program/schedule.h"
#include "gtest/gtest.h"
#include "tests/framework/program/random_program.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

class RandomMemoryTest : public ::testing::TestWithParam<int> {};

// The bytes of each kind of op add up to those of the moment.
TEST_P(RandomMemoryTest, LiveBytesByKindAreThoseOfTheMoment) {
  RandomProgram made(GetParam(), {kRows, kWidth});
  const Program& program = *made.program;
  Schedule schedule = TrainingSchedule(program, made.loss);
  Recompute(made.SomeSegments(), &schedule);
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

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMemoryTest, ::testing::Range(0, 60));

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
    const std::optional<AllocatedPeak> peak =
        ReplayAllocations(schedule, lifetimes, &allocator);
    ASSERT_TRUE(peak.has_value());
    EXPECT_EQ(DescribeRun(schedule, peak->run), "the forward of total");
    EXPECT_EQ(allocator.peak_allocated(), moments[peak->run].total());
    EXPECT_EQ(allocator.allocated(), 0);
    EXPECT_EQ(allocator.reserved(), 2 << 20);
  }
  CachingAllocator full(/*capacity=*/0);
  EXPECT_FALSE(ReplayAllocations(schedule, lifetimes, &full).has_value());
}

// Needs a workspace far larger than its values.
class WorkspaceOp : public Op {
 public:
  absl::string_view kind() const override { return "workspace"; }
  std::string kernel() const override { return "test"; }
  void Forward(const ForwardArgs&) const override {}
  void Backward(const BackwardArgs&) const override {}
  BackwardReads ReadsInBackward(Positions) const override { return {}; }
  int64_t ForwardWorkspaceBytes() const override { return 1 << 14; }
};

TEST(MemoryTest, ReplayCountsTheWorkspaceOfTheLargestMoment) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Value copy =
      b.Add(std::make_unique<WorkspaceOp>(), "workspace", {x}, {b.type(x)})[0];
  const Value loss = Total(b, Square(b, copy));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = ForwardSchedule(program);
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  CachingAllocator allocator;
  const std::optional<AllocatedPeak> peak =
      ReplayAllocations(schedule, lifetimes, &allocator);
  ASSERT_TRUE(peak.has_value());
  EXPECT_EQ(DescribeRun(schedule, peak->run), "the forward of workspace");
  EXPECT_EQ(allocator.peak_allocated(),
            MemoryOverTime(schedule, lifetimes)[peak->run].total());
}

class ProductOp : public WorkspaceOp {
 public:
  Cost ForwardCost() const override { return {.product_flops = 1}; }
  Cost BackwardCost(Positions) const override { return {.product_flops = 1}; }
};

TEST(MemoryTest, AStreamTakesItsWorkspaceAtItsFirstProduct) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Value square = Square(b, x);
  const Value product = b.Add(std::make_unique<ProductOp>(), "product",
                              {square}, {b.type(square)})[0];
  const Value loss = Total(b, product);
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  Schedule schedule = ForwardSchedule(program);
  ASSERT_EQ(schedule.runs.size(), 3);  // square, product, total
  schedule.runs.push_back(schedule.runs[1]);
  schedule.runs.back().stream = StepStream::kWeightGradients;
  using Streams = std::set<StepStream>;
  EXPECT_EQ(StreamsWithProducts(schedule, 0), Streams());
  EXPECT_EQ(StreamsWithProducts(schedule, 2), Streams({StepStream::kMain}));
  EXPECT_EQ(StreamsWithProducts(schedule, 3),
            Streams({StepStream::kMain, StepStream::kWeightGradients}));

  constexpr int64_t kWorkspace = 32 << 20;
  const auto peak = [&](size_t runs) {
    Schedule first = schedule;
    first.runs.resize(runs);
    CachingAllocator allocator;
    allocator.Allocate(kWorkspace);
    allocator.Allocate(kWorkspace);
    const std::optional<AllocatedPeak> found = ReplayAllocations(
        first, Lifetimes(), &allocator, {.bytes = kWorkspace, .streams = 2});
    EXPECT_EQ(allocator.allocated(), 2 * kWorkspace);
    return std::pair(found->run, found->allocated);
  };
  constexpr int64_t kOfOp = 1 << 14;
  EXPECT_EQ(peak(1), std::pair(0, int64_t{0}));
  EXPECT_EQ(peak(2), std::pair(1, kWorkspace + kOfOp));
  EXPECT_EQ(peak(3), std::pair(1, kWorkspace + kOfOp));
  EXPECT_EQ(peak(4), std::pair(3, 2 * kWorkspace + kOfOp));
}

TEST(MemoryTest, ReplayCountsWhatOpsAllocate) {
  const Built built = TwoLayers();
  const Schedule schedule = TrainingSchedule(built.program, built.loss);
  Lifetimes lifetimes = PlanLifetimes(schedule);
  const auto peak = [&] {
    CachingAllocator allocator;
    EXPECT_TRUE(ReplayAllocations(schedule, lifetimes, &allocator).has_value());
    return allocator.peak_allocated();
  };
  const int64_t expected = peak();
  for (Buffer& buffer : lifetimes.buffers) buffer.storage = Storage::kOp;
  EXPECT_EQ(peak(), expected);
}

}  // namespace
}  // namespace tessera::testing
