#include "trainers/plan/step_plan.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/select_backend.h"
#include "framework/cuda/device_spec.h"
#include "framework/program/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The plan of a language model's step with random sizes and options. The sizes
// are small and odd, so that few ranges of memory end at a multiple of 256
// bytes.
class RandomStep {
 public:
  explicit RandomStep(uint64_t seed) : random_(seed) {
    ModelShape& m = options.lm.shape;
    m.kv_heads = Draw(1, 3);
    m.heads = m.kv_heads * Draw(1, 3);
    m.d_model = m.heads * 8 * Draw(1, 4);
    if (Chance(4)) m.own_head_dim = 8 * Draw(1, 4);
    if (Chance(4)) m.norm_placement = NormPlacement::kAfter;
    m.d_ff = Draw(1, 150);
    m.vocab = Draw(2, 600);
    m.layers = Draw(1, 3);
    m.context = Draw(1, 40);
    m.tied_head = Chance(2);
    m.relu_squared = Chance(2);
    if (Chance(4)) m.logit_soft_cap = 30;
    if (Chance(3)) m.qk_norm = static_cast<QkNormForm>(Draw(1, 2));
    if (Chance(4)) m.windows = {Draw(1, 50), 0};
    m.attention_sinks = Chance(4);
    if (Chance(4)) m.attention_soft_cap = 50;
    options.lm.batch = Draw(1, 3);
    options.lm.sequence = m.context;
    options.micro_batches = Chance(5) ? 2 : 1;
    const int ranks = Chance(3) ? Draw(2, 4) : 1;
    options.sharding = {.shards = ranks,
                        .index = static_cast<int>(Draw(0, ranks - 1)),
                        .zero = ranks > 1 ? static_cast<int>(Draw(0, 3)) : 0};
    options.recompute.set_policy(
        static_cast<RecomputeConfig::Policy>(Draw(1, 4)));
    options.recompute.set_every(Draw(1, 2));
    const bool gpu = Chance(2);
    options.execution.set_mode(gpu ? ExecutionConfig::AUTO
                                   : ExecutionConfig::EAGER);
    options.execution.set_storage(Chance(2) ? ExecutionConfig::ARENA
                                            : ExecutionConfig::ALLOCATOR);
    options.execution.set_overlap_weight_gradients(Chance(2));
    options.execution.mutable_fuse()->set_head_loss(!Chance(3));
    options.execution.mutable_fuse()->set_residual_norm(!Chance(3));
    static const DeviceInfo h200 = DeviceToPlanFor("H200").value();
    target.device = gpu ? h200 : CpuDevice();
    target.precision = PrecisionPolicy(static_cast<PrecisionMode>(Draw(0, 4)),
                                       /*fp32_gradients=*/Chance(3));
    target.deterministic = Chance(2);
    if (Chance(5)) {
      target.frozen = {absl::StrCat("layers.", Draw(0, m.layers - 1), ".*")};
    } else if (Chance(8)) {
      target.frozen = {"token_embeddings.weight"};
    } else if (!m.tied_head && Chance(5)) {
      target.frozen = {"token_embeddings.weight", "layers.*", "ln_*"};
      only_head = true;
    }
    if (Chance(3)) {
      target.muon = {Chance(2) ? "*" : "*layers.*"};
      // Without a matrix to train the pattern would be refused.
      if (only_head || (m.layers == 1 && !target.frozen.empty())) {
        target.muon.clear();
      }
    }
    ChooseBackend();
  }

  // For the options and target as they are.
  void ChooseBackend() {
    const ModelShape& m = options.lm.shape;
    options.lm.attention = AttentionProblemOf(m, options.lm.batch, m.context,
                                              /*needs_grad=*/true, target);
    options.lm.attention.documents = Chance(4);
    options.lm.backend =
        SelectBackend(BackendRequest(), options.lm.attention)->backend;
  }

  std::string Describe() const {
    const ModelShape& m = options.lm.shape;
    return absl::StrCat(
        "V=", m.vocab, " layers=", m.layers, " C=", m.d_model, " H=", m.heads,
        " D=", m.head_dim(), " norms=", static_cast<int>(m.norm_placement),
        " G=", m.kv_heads, " F=", m.d_ff, " B=", options.lm.batch,
        " S=", m.context, " tied=", m.tied_head, " relu2=", m.relu_squared,
        " qk_norm=", static_cast<int>(m.qk_norm), " sinks=", m.attention_sinks,
        " documents=", options.lm.attention.documents,
        " micro_batches=", options.micro_batches, " shard ",
        options.sharding.index, " of ", options.sharding.shards, ", ZeRO ",
        options.sharding.zero, ", ", target.precision.name(), " on ",
        target.device.is_cuda() ? "a GPU " : "a CPU ",
        options.recompute.ShortDebugString(), " ",
        target.muon.empty() ? "" : "Muon ",
        options.execution.ShortDebugString(), " ", options.lm.backend->name());
  }

  StepPlanOptions options;
  ProgramTarget target;
  bool only_head = false;  // everything else is frozen

 private:
  int64_t Draw(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }
  bool Chance(int one_in) { return Draw(1, one_in) == 1; }

  std::mt19937_64 random_;
};

bool Lends(const Lifetimes& lifetimes) {
  return absl::c_any_of(lifetimes.buffers, [](const Buffer& buffer) {
    return buffer.storage == Storage::kGradients;
  });
}

// In parts, which shards of the test run side by side.
class RandomStepTest : public ::testing::TestWithParam<int> {};

// No value is read after its memory was written again, and no gradient is
// written over: of 50,000 steps.
TEST_P(RandomStepTest, NothingIsReadAfterItsMemoryWasTaken) {
  constexpr int kSteps = 12'500;
  int lends = 0, beside = 0, muon = 0, only_head = 0;
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t seed = static_cast<uint64_t>(GetParam()) * kSteps + i;
    const RandomStep step(seed);
    const auto plan = PlanStep(step.options, step.target);
    ASSERT_TRUE(plan.ok()) << plan.status() << "\nseed " << seed << ": "
                           << step.Describe();
    const StepPlan& planned = **plan;
    const absl::Status valid = VerifyStep(planned);
    ASSERT_TRUE(valid.ok())
        << valid << "\nseed " << seed << ": " << step.Describe();
    lends += Lends(planned.train_lifetimes);
    muon += !step.target.muon.empty();
    only_head += step.only_head;
    beside += absl::c_any_of(planned.train.runs, [](const StepRun& run) {
      return run.stream != StepStream::kMain;
    });
  }
  // The sweep is about these.
  EXPECT_GT(lends, kSteps / 2);
  EXPECT_GT(beside, kSteps / 10);
  EXPECT_GT(muon, kSteps / 10);
  EXPECT_GT(only_head, kSteps / 25);
}

// Whether the forward products of a model with `layers` spare multiprocessors.
bool SparesForUpdate(int layers, bool defer) {
  RandomStep step(0);
  ModelShape& m = step.options.lm.shape;
  m = {.vocab = 1000,
       .layers = layers,
       .d_model = 2048,
       .heads = 8,
       .kv_heads = 8,
       .d_ff = 8192};
  m.context = step.options.lm.sequence = 16;
  step.options.execution.set_mode(ExecutionConfig::AUTO);
  step.options.execution.set_defer_update(defer);
  step.target.device = DeviceToPlanFor("H100").value();
  step.target.precision = PrecisionPolicy(PrecisionMode::kBf16);
  step.target.frozen.clear();
  step.ChooseBackend();
  const auto plan = PlanStep(step.options, step.target);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() &&
         absl::c_any_of((*plan)->train.runs, [](const StepRun& run) {
           return run.spared_multiprocessors > 0;
         });
}

TEST(StepPlanTest, ProductsSpareMultiprocessorsForALargeUpdate) {
  // A layer has 67 M weights, whose update moves 1.7 GB.
  EXPECT_TRUE(SparesForUpdate(/*layers=*/24, /*defer=*/true));
  EXPECT_FALSE(SparesForUpdate(/*layers=*/12, /*defer=*/true));
  EXPECT_FALSE(SparesForUpdate(/*layers=*/24, /*defer=*/false));
}

// The blocks in which a step of a model with six recomputes something.
std::set<std::string> RecomputedBlocks(RecomputeConfig::Policy policy,
                                       int every) {
  RandomStep step(0);
  step.options.lm.shape.layers = 6;
  step.options.micro_batches = 1;
  step.options.recompute.set_policy(policy);
  step.options.recompute.set_every(every);
  step.target.frozen.clear();
  const auto plan = PlanStep(step.options, step.target);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const Schedule& schedule = (*plan)->train;
  std::set<std::string> blocks;
  for (const StepRun& run : schedule.runs) {
    if (run.phase != Phase::kRecompute) continue;
    const std::string path = schedule.program->ScopePath(schedule.ScopeOf(run));
    blocks.insert(path.substr(0, path.find('/')));
  }
  return blocks;
}

TEST(StepPlanTest, EveryKthBlockFromTheFirstIsRecomputed) {
  using Blocks = std::set<std::string>;
  for (const RecomputeConfig::Policy policy :
       {RecomputeConfig::BLOCK, RecomputeConfig::ATTENTION,
        RecomputeConfig::FFN}) {
    SCOPED_TRACE(RecomputeConfig::Policy_Name(policy));
    EXPECT_EQ(RecomputedBlocks(policy, 1),
              (Blocks{"block_0", "block_1", "block_2", "block_3", "block_4",
                      "block_5"}));
    EXPECT_EQ(RecomputedBlocks(policy, 2),
              (Blocks{"block_0", "block_2", "block_4"}));
    EXPECT_EQ(RecomputedBlocks(policy, 4), (Blocks{"block_0", "block_4"}));
    EXPECT_EQ(RecomputedBlocks(policy, 6), Blocks{"block_0"});
  }
  EXPECT_EQ(RecomputedBlocks(RecomputeConfig::NONE, 1), Blocks{});
}

// A step of Muon whose layers have 25 M weights each.
RandomStep MuonStep(int layers) {
  RandomStep step(0);
  ModelShape& m = step.options.lm.shape;
  m = {.vocab = 1000,
       .layers = layers,
       .d_model = 1536,
       .heads = 12,
       .kv_heads = 12,
       .d_ff = 3584};
  m.context = step.options.lm.sequence = 16;
  step.options.micro_batches = 1;
  step.options.sharding = {};
  step.options.execution.set_mode(ExecutionConfig::EAGER);
  step.options.execution.set_defer_update(false);
  step.target.device = DeviceToPlanFor("H100").value();
  step.target.precision = PrecisionPolicy(PrecisionMode::kBf16);
  step.target.frozen.clear();
  step.target.muon = {"layers.*"};
  step.ChooseBackend();
  return step;
}

std::vector<const Task*> Updates(const Schedule& schedule) {
  std::vector<const Task*> updates;
  for (const StepRun& run : schedule.runs) {
    if (!schedule.IsTask(run, Task::Kind::kUpdate)) continue;
    updates.push_back(&schedule.tasks[run.task]);
  }
  return updates;
}

TEST(MuonStepTest, MatricesAreUpdatedInWholeSlicesWithTheirCost) {
  const RandomStep step = MuonStep(/*layers=*/2);
  const auto plan = PlanStep(step.options, step.target);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<const Task*> updates = Updates((*plan)->train);
  // A slice ends with the block that gives it 32 Mi elements: the output
  // projection of the second layer.
  ASSERT_EQ(updates.size(), 3u);
  EXPECT_EQ(updates[0]->family, "adamw");
  constexpr double kC = 1536, kF = 3584;
  // Of symmetric products one half. An oblong matrix is multiplied by itself
  // and by what five steps make of it twice, and has 14 small products.
  constexpr double kSquare = 5 * 4 * kC * kC * kC;
  constexpr double kOblong = 2 * 3 * kC * kC * kF + 14 * kC * kC * kC;
  EXPECT_DOUBLE_EQ(updates[1]->cost.product_flops, 8 * kSquare + 3 * kOblong);
  EXPECT_DOUBLE_EQ(updates[2]->cost.product_flops, 3 * kOblong);
  // In FP32 all elements are computed, step by step as written.
  RandomStep fp32 = step;
  fp32.target.precision = PrecisionPolicy(PrecisionMode::kFp32);
  fp32.ChooseBackend();
  const auto as_written = PlanStep(fp32.options, fp32.target);
  ASSERT_TRUE(as_written.ok()) << as_written.status();
  EXPECT_DOUBLE_EQ(Updates((*as_written)->train)[2]->cost.product_flops,
                   3 * 5 * (4 * kC * kC * kF + 2 * kC * kC * kC));
  int64_t end = updates[0]->range.end;
  for (const Task* const update : {updates[1], updates[2]}) {
    EXPECT_EQ(update->family, "muon");
    EXPECT_EQ(update->range.begin, end);
    end = update->range.end;
  }
}

// Weights in two halves or FP32 have 4 bytes, like an average.
TEST(EmaStepTest, AnUpdateWithAnAverageMoves12BytesAWeightMore) {
  RandomStep step = MuonStep(/*layers=*/2);
  const auto without = PlanStep(step.options, step.target);
  step.options.ema = true;
  const auto with = PlanStep(step.options, step.target);
  ASSERT_TRUE(without.ok() && with.ok()) << with.status();
  EXPECT_TRUE((*with)->ema);
  const auto before = Updates((*without)->train);
  const auto after = Updates((*with)->train);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    const auto weights = static_cast<double>(after[i]->output.numel());
    EXPECT_NEAR(after[i]->cost.bytes - before[i]->cost.bytes, 12 * weights, 1);
    EXPECT_EQ(after[i]->cost.flops - before[i]->cost.flops, 3 * weights);
    EXPECT_EQ(after[i]->family, before[i]->family + ", ema");
  }
}

TEST(MuonStepTest, ADeferredUpdateKeepsItsSlices) {
  RandomStep step = MuonStep(/*layers=*/3);
  // Twice the bytes of what DeferUpdate() would cut.
  step.target.precision =
      PrecisionPolicy(PrecisionMode::kBf16, /*fp32_gradients=*/true);
  const auto plain = PlanStep(step.options, step.target);
  step.options.execution.set_defer_update(true);
  const auto deferred = PlanStep(step.options, step.target);
  ASSERT_TRUE(plain.ok() && deferred.ok());
  ASSERT_TRUE((*deferred)->train.starts_pending);
  const auto muon = [](const StepPlan& plan) {
    std::vector<std::pair<int64_t, int64_t>> slices;
    for (const Task* const update : Updates(plan.train)) {
      if (update->family != "muon") continue;
      slices.emplace_back(update->range.begin, update->range.end);
    }
    return slices;
  };
  EXPECT_EQ(muon(**plain), muon(**deferred));
  EXPECT_EQ(muon(**plain).size(), 3u);
  const absl::Status valid = VerifyStep(**deferred);
  EXPECT_TRUE(valid.ok()) << valid;
}

TEST(MuonStepTest, TheProductsOfAnUpdateAreNotTheModelsWork) {
  RandomStep step = MuonStep(/*layers=*/2);
  const auto muon = PlanStep(step.options, step.target);
  step.target.muon.clear();
  const auto adamw = PlanStep(step.options, step.target);
  ASSERT_TRUE(muon.ok() && adamw.ok());
  EXPECT_GT(ModelFlopsPerToken(**adamw), 0);
  EXPECT_EQ(ModelFlopsPerToken(**muon), ModelFlopsPerToken(**adamw));
}

// Two ranks: one updates w1 and w3 of a layer, the other the rest.
TEST(MuonStepTest, RanksUpdateWholeMatrices) {
  RandomStep step = MuonStep(/*layers=*/2);
  ModelShape& m = step.options.lm.shape;
  m.d_model = 1024;  // a layer has 16 Mi weights, as many as a section needs
  m.heads = m.kv_heads = 8;
  m.d_ff = 4096;
  step.ChooseBackend();
  step.options.sharding = {.shards = 2};
  const auto whole = PlanStep(step.options, step.target);
  ASSERT_TRUE(whole.ok()) << whole.status();
  constexpr double kC = 1024, kF = 4096;
  constexpr double kSquare = 5 * 4 * kC * kC * kC;
  constexpr double kOblong = 2 * 3 * kC * kC * kF + 14 * kC * kC * kC;
  const std::vector<const Task*> all = Updates((*whole)->train);
  ASSERT_EQ(all.size(), 3u);  // AdamW, and a section per layer
  for (const int zero : {1, 2, 3}) {
    step.options.sharding.zero = zero;
    const auto plan = PlanStep(step.options, step.target);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const absl::Status valid = VerifyStep(**plan);
    EXPECT_TRUE(valid.ok()) << valid;
    std::vector<const Task*> own;
    for (const Task* const update : Updates((*plan)->train)) {
      if (update->family == "muon") own.push_back(update);
    }
    ASSERT_EQ(own.size(), 2u);
    for (int layer : {0, 1}) {
      EXPECT_TRUE(own[layer]->own_part);
      EXPECT_EQ(own[layer]->range.begin, all[1 + layer]->range.begin);
      EXPECT_EQ(own[layer]->range.end, all[1 + layer]->range.end);
      // In the other layer each rank has what the other one has in this.
      EXPECT_DOUBLE_EQ(own[layer]->cost.product_flops,
                       (3 * kOblong + 4 * kSquare) / 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomStepTest, ::testing::Range(0, 4));

}  // namespace
}  // namespace tessera
