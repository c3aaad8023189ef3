#include "trainers/plan/what_fits.h"

#include <algorithm>
#include <utility>

#include "attention_backends/backend_table.h"
#include "trainers/plan/step_rows.h"

namespace tessera {
namespace {

// Limits of the search. Planning takes time in proportion to the layers.
constexpr int64_t kMostSequences = int64_t{1} << 20;
constexpr int64_t kLongestContext = int64_t{1} << 20;
constexpr int64_t kMostLayers = 1024;

constexpr int64_t kContextStep = 128;

// Plans the run on the same device with another config.
absl::StatusOr<RunPlan> PlanWith(const RunPlan& plan, const RunConfig& config) {
  return PlanWithoutFit(config, plan.world, plan.device);
}

struct Point {
  int64_t n = 0, bytes = 0;
};

// The n in [from, to] at which the line through `a` and `b` reaches `capacity`.
int64_t Reaches(Point a, Point b, int64_t capacity, int64_t from, int64_t to) {
  const double slope =
      static_cast<double>(b.bytes - a.bytes) / static_cast<double>(b.n - a.n);
  const double n = static_cast<double>(a.n) +
                   static_cast<double>(capacity - a.bytes) / slope;
  if (!(n < static_cast<double>(to))) return to;  // also without a slope
  return std::max(from, static_cast<int64_t>(n));
}

// The largest multiple of `unit` that `set` may write into the config.
LargestValue Largest(const RunPlan& plan, std::string field, int64_t now,
                     int64_t unit, int64_t limit,
                     const std::function<void(int64_t, RunConfig*)>& set) {
  const auto bytes = [&](int64_t n) -> std::optional<int64_t> {
    RunConfig config = plan.config;
    set(n * unit, &config);
    const absl::StatusOr<RunPlan> other = PlanWith(plan, config);
    if (other.ok()) return other->memory.report.total();
    // Too few layers may lack one that a pattern names.
    return n * unit < now ? std::optional<int64_t>(0) : std::nullopt;
  };
  LargestValue value = {.field = std::move(field), .now = now};
  const int64_t units =
      LargestThatFits(bytes, *plan.memory.report.capacity, limit / unit);
  value.largest = units * unit;
  value.at_limit = units == limit / unit;
  if (units > 0 && bytes(units) == 0) value.largest = 0;
  // The current value need not be a multiple.
  if (value.largest < now && CheckFits(plan).ok()) value.largest = now;
  return value;
}

LargestValue LargestBatch(const RunPlan& plan) {
  const TrainingConfig& training = plan.config.training();
  return Largest(
      plan, "training.batch_size", training.batch_size(),
      int64_t{plan.layout.data_ranks()} * training.micro_batches(),
      kMostSequences, [](int64_t batch, RunConfig* config) {
        config->mutable_training()->set_batch_size(static_cast<int32_t>(batch));
      });
}

Alternative AlternativeOf(const RunPlan& plan, std::string value,
                          bool current) {
  Alternative alternative = {.value = std::move(value),
                             .current = current,
                             .bytes = plan.memory.report.total(),
                             .step_seconds = 0,
                             .largest_batch = LargestBatch(plan)};
  for (const StepRow& row : RowsOfStep(plan)) {
    const auto count = static_cast<double>(row.count);
    alternative.step_flops += count * row.cost.flops;
    if (!row.seconds.has_value()) {
      alternative.step_seconds.reset();
    } else if (alternative.step_seconds.has_value()) {
      *alternative.step_seconds += count * *row.seconds;
    }
  }
  return alternative;
}

std::vector<Alternative> RecomputePolicies(const RunPlan& plan) {
  std::vector<Alternative> alternatives;
  for (const RecomputeConfig::Policy policy :
       {RecomputeConfig::NONE, RecomputeConfig::ATTENTION, RecomputeConfig::FFN,
        RecomputeConfig::BLOCK}) {
    RunConfig config = plan.config;
    config.mutable_recompute()->set_policy(policy);
    const absl::StatusOr<RunPlan> other = PlanWith(plan, config);
    if (!other.ok()) continue;
    alternatives.push_back(
        AlternativeOf(*other, RecomputeConfig::Policy_Name(policy),
                      policy == plan.config.recompute().policy()));
  }
  return alternatives;
}

std::vector<Alternative> Backends(const RunPlan& plan) {
  std::vector<Alternative> alternatives;
  for (const AttentionBackend* backend : AttentionBackends()) {
    const std::string name(backend->name());
    AttentionConfig::Backend value;
    if (!AttentionConfig::Backend_Parse(name, &value)) continue;
    RunConfig config = plan.config;
    config.mutable_attention()->set_backend(value);
    const absl::StatusOr<RunPlan> other = PlanWith(plan, config);
    if (!other.ok()) continue;
    alternatives.push_back(
        AlternativeOf(*other, name, name == plan.backend.backend->name()));
  }
  return alternatives;
}

}  // namespace

int64_t LargestThatFits(
    const std::function<std::optional<int64_t>(int64_t)>& bytes,
    int64_t capacity, int64_t limit) {
  const auto fits = [capacity](std::optional<int64_t> b) {
    return b.has_value() && *b <= capacity;
  };
  const std::optional<int64_t> one = bytes(1);
  if (limit < 1 || !fits(one)) return 0;
  Point before = {1, *one}, low = before;
  // Extrapolates until something does not fit. Growing at most 16 times keeps
  // the search away from sizes that overflow.
  std::optional<int64_t> too_large;  // bytes of `high`
  int64_t high = limit + 1;
  while (low.n < limit) {
    const int64_t n = low.n == 1 ? std::min<int64_t>(2, limit)
                                 : Reaches(before, low, capacity, low.n + 1,
                                           std::min(limit, 16 * low.n));
    const std::optional<int64_t> b = bytes(n);
    if (!fits(b)) {
      high = n;
      too_large = b;
      break;
    }
    before = std::exchange(low, {n, *b});
  }
  // Interpolates, in every third round bisects.
  for (int round = 1; high - low.n > 1; ++round) {
    int64_t n = low.n + (high - low.n) / 2;
    if (round % 3 != 0 && too_large.has_value()) {
      n = Reaches(low, {high, *too_large}, capacity, low.n + 1, high - 1);
    }
    const std::optional<int64_t> b = bytes(n);
    if (fits(b)) {
      low = {n, *b};
    } else {
      high = n;
      too_large = b;
    }
  }
  return low.n;
}

WhatFits FindWhatFits(const RunPlan& plan) {
  WhatFits fits;
  fits.batch = LargestBatch(plan);
  const int64_t context = plan.shape.context;
  fits.context = Largest(plan, "model.context_length", context,
                         std::min(kContextStep, context), kLongestContext,
                         [](int64_t length, RunConfig* config) {
                           config->mutable_model()->set_context_length(
                               static_cast<int32_t>(length));
                         });
  const auto set_layers = [](int64_t layers, RunConfig* config) {
    config->mutable_model()->set_num_layers(static_cast<int32_t>(layers));
  };
  fits.layers = Largest(plan, "model.num_layers", plan.shape.layers, 1,
                        kMostLayers, set_layers);
  if (fits.layers.largest > 0) {
    RunConfig config = plan.config;
    set_layers(fits.layers.largest, &config);
    if (const auto deepest = PlanWith(plan, config); deepest.ok()) {
      fits.parameters_of_layers = deepest->num_parameters;
    }
  }
  fits.recompute = RecomputePolicies(plan);
  fits.backends = Backends(plan);
  return fits;
}

}  // namespace tessera
