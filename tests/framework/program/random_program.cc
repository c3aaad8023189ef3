#include "tests/framework/program/random_program.h"

#include <algorithm>
#include <utility>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "framework/program/autograd_op.h"
#include "framework/program/rewrites/defer_update.h"
#include "framework/program/rewrites/overlap_weight_gradients.h"
#include "framework/program/rewrites/reduce_early.h"
#include "framework/program/rewrites/shard.h"
#include "framework/program/rewrites/shard_gradients.h"
#include "framework/program/rewrites/shard_weights.h"
#include "framework/program/stream_order.h"
#include "tests/framework/program/test_ops.h"

namespace tessera::testing {

RandomProgram::Sizes RandomProgram::OddSizes(uint64_t seed) {
  std::mt19937_64 random(~seed);
  const auto draw = [&random](int from, int to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  return {.rows = draw(1, 40), .width = draw(1, 25)};
}

RandomProgram::RandomProgram(uint64_t seed, const Sizes& sizes) : random(seed) {
  ProgramTarget target = CpuTarget();
  if (Draw(3) == 0) target.frozen = {"w0"};
  ProgramBuilder b(target);
  x = b.Input("x", {{sizes.rows, sizes.width}, at::kFloat},
              /*needs_grad=*/true);
  std::vector<Value> values = {x};
  std::vector<Weight> weights;
  for (int block = 0; block < 4; ++block) {
    const ProgramBuilder::Scope scope(b, absl::StrCat("block_", block));
    const int ops = 1 + Draw(5);
    for (int i = 0; i < ops; ++i) values.push_back(Next(b, values, &weights));
  }
  Value sum = values.back();
  for (int i = 0; i < 2; ++i) sum = Sum(b, sum, values[Draw(values.size())]);
  loss = Total(b, sum);
  b.Output(loss);
  program.emplace(std::move(b).Build().value());
}

Value RandomProgram::Next(ProgramBuilder& b, const std::vector<Value>& values,
                          std::vector<Weight>* weights) {
  // Prefers recent values.
  const int back = std::min<int>(values.size(), 1 + Draw(3));
  const Value value = values[values.size() - back];
  const int64_t width = b.type(value).shape.back();
  switch (weights->empty() ? 0 : Draw(6)) {
    case 0: {
      if (weights->empty() || Draw(4) != 0) {
        weights->push_back(
            Matrix(b, absl::StrCat("w", weights->size()), width, width));
        return Product(b, value, weights->back());
      }
      return Product(b, value, (*weights)[Draw(weights->size())]);
    }
    case 1:
      return Sum(b, value, values[Draw(values.size())]);
    case 2:
      return Negative(b, value);
    case 3:
      return Square(b, Negative(b, value));
    case 4:
      return AutogradOp(
          b,
          {.name = "tanh",
           .function =
               [](const std::vector<at::Tensor>& in) { return in[0].tanh(); }},
          {value}, b.type(value));
    default:
      return Exponential(b, Negative(b, Square(b, value)));
  }
}

std::vector<RecomputedSegment> RandomProgram::SomeSegments() {
  std::vector<RecomputedSegment> segments;
  for (const ProgramScope& scope : program->scopes()) {
    if (scope.parent == 0 && Draw(2) == 0) {
      segments.push_back({scope.first_op, scope.end_op});
    }
  }
  return segments;
}

std::vector<GradientRange> RangesOf(const Program& program,
                                    const Sharding& sharding) {
  const ParameterLayout layout =
      PlaceParameters(program.parameters(), {}, sharding).value();
  std::vector<GradientRange> ranges;
  for (size_t p = 0; p < program.parameters().size(); ++p) {
    const ParameterBlockSpec& block = program.parameters()[p];
    if (!block.trainable) {
      ranges.push_back({});
      continue;
    }
    const int64_t begin = layout.block_offsets[p];
    ranges.push_back({begin * 4, (begin + CountParameters(block)) * 4});
  }
  return ranges;
}

Schedule StepOf(const Program& program, Value loss, int micro_batches,
                const Sharding& sharding) {
  ScheduleBuilder list(program, micro_batches);
  list.Add({.kind = Task::Kind::kBegin}, Phase::kForward, -1, {},
           {list.Loss(), list.LossGradient(loss)});
  for (int m = 0; m < micro_batches; ++m) {
    list.Forward(m, loss);
    list.Backward(m);
    list.Add({.kind = Task::Kind::kAddLoss}, Phase::kBackward, m,
             {list.ValueOf(loss, m), list.Loss()}, {list.Loss()});
  }
  const ParameterLayout layout =
      PlaceParameters(program.parameters(), {}, sharding).value();
  const int64_t bytes = 4 * layout.trainable_extent;
  GradientShards shards = {.sharding = sharding};
  for (const ParameterSection& section : layout.sections) {
    shards.sections.push_back({4 * section.begin, 4 * section.end});
    shards.divisible.push_back(section.size() > 256);
  }
  // A slice may hold several parameters, and a parameter lie in several.
  constexpr int64_t kSlice = 512;
  std::vector<GradientRange> sums = shards.sections;
  if (sharding.shards == 1) {
    sums.clear();
    for (int64_t begin = 0; begin < bytes; begin += kSlice) {
      sums.push_back({begin, std::min(begin + kSlice, bytes)});
    }
  }
  for (const GradientRange& range : sums) {
    list.Add({.kind = Task::Kind::kReduce, .range = range}, Phase::kReduce);
  }
  list.Add({.kind = Task::Kind::kReduceLoss}, Phase::kReduce, -1, {list.Loss()},
           {list.Loss()});
  const int squares = list.Scalar("squares"), factors = list.UpdateFactors();
  const GradientRange all = {0, bytes};
  list.Add({.kind = Task::Kind::kZero, .range = all}, Phase::kClip);
  list.Add({.kind = Task::Kind::kSumOfSquares, .range = all}, Phase::kClip, -1,
           {}, {squares});
  list.Add({.kind = Task::Kind::kClip}, Phase::kClip, -1,
           {squares, list.Loss()}, {factors});
  list.Add({.kind = Task::Kind::kUpdate, .range = all}, Phase::kClip, -1,
           {factors});
  Schedule schedule = std::move(list).Build();
  schedule.gradients = RangesOf(program, sharding);
  schedule.shards = std::move(shards);
  return schedule;
}

Schedule Rewritten(Schedule schedule, const Rewrites& rewrites) {
  constexpr int64_t kSlice = 512;
  Recompute(rewrites.recompute, &schedule);
  if (rewrites.zero >= 1) ShardUpdate(&schedule, rewrites.zero);
  if (rewrites.defer) {
    DeferUpdate(&schedule, /*spared_multiprocessors=*/0, kSlice);
  }
  if (rewrites.overlap) OverlapWeightGradients(&schedule);
  if (rewrites.zero >= 2) {
    ShardGradients(&schedule);
  } else if (rewrites.reduce) {
    ReduceEarly(&schedule);
  }
  if (rewrites.zero >= 3) {
    ShardWeights(&schedule, {.kind = Task::Kind::kUnshard}, /*depth=*/1);
  }
  if (rewrites.data_waits) AddDataWaits(&schedule);
  return schedule;
}

}  // namespace tessera::testing
