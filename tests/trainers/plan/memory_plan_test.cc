#include "trainers/plan/memory_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device_spec.h"
#include "framework/program/caching_allocator.h"
#include "framework/program/memory.h"
#include "gtest/gtest.h"
#include "trainers/config/config_loader.h"
#include "trainers/plan/run_plan.h"

namespace tessera {
namespace {

RunConfig Config(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"training.batch_size=4",
                                   "training.eval_batches=0"};
  sets.insert(sets.end(), more.begin(), more.end());
  return LoadRunConfig({"configs/2.7B.pbtxt", "configs/precision/bf16.pbtxt"},
                       sets)
      .value();
}

// Measured on an H200 (docs/studies/recompute), in GiB, before updates were
// deferred.
struct Measured {
  int context;
  const char* policy;
  int every;
  double allocated, reserved;
};

TEST(MemoryPlanTest, AgreesWithAnH200) {
  const DeviceInfo h200 = DeviceToPlanFor("H200").value();
  for (const Measured& measured :
       {Measured{512, "NONE", 1, 45.1847, 45.2344},
        Measured{512, "FFN", 1, 44.5890, 44.6367},
        Measured{1024, "NONE", 1, 52.0716, 52.1582},
        Measured{1024, "ATTENTION", 1, 49.0423, 49.1309},
        Measured{1024, "FFN", 1, 44.7650, 44.8535},
        Measured{1024, "BLOCK", 1, 44.7845, 44.8730},
        Measured{1024, "BLOCK", 2, 46.0540, 46.1426},
        Measured{2048, "NONE", 1, 65.9372, 66.0723},
        Measured{2048, "FFN", 1, 50.1970, 50.3301},
        Measured{2048, "BLOCK", 2, 53.7107, 53.8457}}) {
    SCOPED_TRACE(absl::StrCat(measured.context, " ", measured.policy, " ",
                              measured.every));
    const auto plan =
        PlanRun(Config({absl::StrCat("model.context_length=", measured.context),
                        absl::StrCat("recompute.policy=", measured.policy),
                        absl::StrCat("recompute.every=", measured.every),
                        "execution.defer_update=false"}),
                {}, h200);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const MemoryReport& report = plan->memory.report;
    constexpr double kGiB = 0x1p30;
    EXPECT_GE(report.allocated() / kGiB, measured.allocated);
    EXPECT_LE(report.allocated() / kGiB, measured.allocated * 1.0025);
    EXPECT_NEAR(report.reserved() / kGiB, measured.reserved, 0.006);
  }
}

TEST(MemoryPlanTest, CountsWhatTheAllocatorAdds) {
  const RunConfig config = Config({});
  const MemoryReport gpu =
      PlanRun(config, {}, DeviceToPlanFor("H200").value())->memory.report;
  EXPECT_EQ(gpu.libraries, 32 << 20);
  EXPECT_GT(gpu.slack, 0);
  EXPECT_GT(gpu.fragmentation, 0);
  EXPECT_EQ(gpu.context, int64_t{792} << 20);
  EXPECT_EQ(gpu.reserved() % (2 << 20), 0);  // whole segments
  EXPECT_EQ(gpu.total(), gpu.allocated() + gpu.fragmentation + gpu.context);
  DeviceInfo cpu = CpuDevice();
  cpu.total_bytes = int64_t{1} << 40;
  const MemoryReport host = PlanRun(config, {}, cpu)->memory.report;
  EXPECT_EQ(host.libraries + host.slack + host.fragmentation + host.context, 0);
}

// In use on each of two H100 (docs/scaling.md).
TEST(MemoryPlanTest, CountsWhatNcclTakes) {
  const WorldInfo world = {.world_size = 2, .local_world_size = 2};
  const DeviceInfo h100 = DeviceToPlanFor("H100").value();
  for (const auto& [zero, in_use] : {std::pair{1, 38.28}, {3, 38.77}}) {
    const auto plan =
        PlanRun(Config({"training.batch_size=8", "model.context_length=1024",
                        absl::StrCat("layout.zero=", zero)}),
                world, h100);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NEAR(plan->memory.report.total() / 0x1p30, in_use, 0.2) << zero;
  }
  const auto alone = PlanRun(Config({}), {}, h100);
  EXPECT_EQ(alone->memory.report.communication, 0);
}

// Two machines of six GPUs: a group of four may be on both, one of three not.
TEST(MemoryPlanTest, RanksAgreeWhetherCopyEnginesMoveTheState) {
  const DeviceInfo h100 = DeviceToPlanFor("H100").value();
  for (const int shards : {3, 4}) {
    for (int rank = 0; rank < 12; ++rank) {
      const auto plan =
          PlanRun(Config({"training.batch_size=12", "layout.zero=1",
                          absl::StrCat("layout.shard=", shards)}),
                  {.rank = rank,
                   .world_size = 12,
                   .local_rank = rank % 6,
                   .local_world_size = 6},
                  h100);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->step->sharding.copy_engines, shards == 3) << rank;
    }
  }
}

// Muon has no second moments, and a buffer for the largest batch: X, its
// successor and four small matrices of w1 and w3 of a layer, and their norms.
TEST(MemoryPlanTest, CountsMuonsStateAndBuffer) {
  const DeviceInfo h200 = DeviceToPlanFor("H200").value();
  const RunPlan adamw = PlanRun(Config({}), {}, h200).value();
  const RunPlan muon =
      PlanRun(Config({"optimizer.muon.ns_steps=5"}), {}, h200).value();
  const RunPlan normuon =
      PlanRun(Config({"optimizer.muon.normuon_beta2=0.95"}), {}, h200).value();
  const ModelShape& m = muon.shape;
  const int64_t c = m.d_model, f = m.d_ff;
  const MemoryReport &before = adamw.memory.report, &after = muon.memory.report,
                     &with_rows = normuon.memory.report;
  EXPECT_EQ(before.optimizer - after.optimizer,
            4 * m.layers * (4 * c * c + 3 * c * f));
  EXPECT_EQ(after.other - before.other,
            2 * 2 * (c * f + 2 * c * c) * int64_t{2} + 256);
  EXPECT_EQ(with_rows.optimizer - after.optimizer,
            4 * m.layers * (5 * c + 2 * f));
  EXPECT_EQ(with_rows.other - after.other, 2 * 2 * f * int64_t{4});
  // Its products run on the stream of the deferred update.
  EXPECT_EQ(after.libraries - before.libraries, 32 << 20);
}

// Eight ranks, whose sections are of two layers. The largest matrix is a
// quarter of a layer and fills a rank's part, so there is no padding.
TEST(MemoryPlanTest, RanksDivideMuonsState) {
  const auto plan = [](const char* zero, const char* optimizer) {
    return PlanRun(Config({"training.batch_size=8", zero, optimizer}),
                   {.world_size = 8, .local_world_size = 8},
                   DeviceToPlanFor("H200").value())
        .value();
  };
  const RunPlan adamw = plan("layout.zero=1", "optimizer.clip_norm=1");
  const RunPlan muon = plan("layout.zero=1", "optimizer.muon.ns_steps=5");
  const RunPlan normuon =
      plan("layout.zero=1", "optimizer.muon.normuon_beta2=0.95");
  const RunPlan whole = plan("layout.zero=0", "optimizer.muon.ns_steps=5");
  const ModelShape& m = muon.shape;
  const int64_t c = m.d_model, f = m.d_ff;
  ASSERT_EQ(f, 4 * c);
  EXPECT_EQ(muon.memory.report.gradients, adamw.memory.report.gradients);
  EXPECT_EQ(8 * muon.memory.report.optimizer, whole.memory.report.optimizer);
  EXPECT_EQ(adamw.memory.report.optimizer - muon.memory.report.optimizer,
            4 * m.layers * (4 * c * c + 3 * c * f) / 8);
  // One per row, of at most four square matrices a rank.
  EXPECT_EQ(normuon.memory.report.optimizer - muon.memory.report.optimizer,
            4 * m.layers / 2 * 4 * c);
}

// Without padding, as above.
TEST(MemoryPlanTest, RanksDivideTheAverageOfTheWeights) {
  const auto average = [](const char* zero) {
    const auto optimizer = [zero](const char* more) {
      return PlanRun(Config({"training.batch_size=8", zero, more}),
                     {.world_size = 8, .local_world_size = 8},
                     DeviceToPlanFor("H200").value())
          ->memory.report.optimizer;
    };
    return optimizer("optimizer.ema.decay=0.9") -
           optimizer("optimizer.clip_norm=1");
  };
  EXPECT_GT(average("layout.zero=1"), 0);
  EXPECT_EQ(8 * average("layout.zero=1"), average("layout.zero=0"));
}

// With 128k words and 64k tokens, an evaluation takes 4.2 GB of logits. Under a
// graph it takes them from the memory of the step, whatever runs first.
TEST(MemoryPlanTest, AnEvaluationTakesTheMemoryOfTheStep) {
  const auto plan = [](const std::string& evaluations) {
    return PlanRun(
        LoadRunConfig({"configs/small.pbtxt", "configs/precision/bf16.pbtxt"},
                      {"model.vocab_size=128256", "training.batch_size=128",
                       "training.eval_batches=" + evaluations})
            .value(),
        {}, DeviceToPlanFor("H200").value());
  };
  const auto with = plan("3"), without = plan("0");
  ASSERT_TRUE(with.ok()) << with.status();
  ASSERT_TRUE(without.ok()) << without.status();
  const StepPlan& step = *with->step;
  ASSERT_TRUE(step.graph);
  const auto replay = [&](const std::string& order, CachingAllocator* pool) {
    for (const char pass : order) {
      const bool trains = pass == 't';
      EXPECT_TRUE(ReplayAllocations(
                      trains ? step.train : step.evaluate,
                      trains ? step.train_lifetimes : step.evaluate_lifetimes,
                      pool)
                      .has_value());
    }
    return pool->peak_reserved();
  };
  CachingAllocator evaluating;
  EXPECT_GT(replay("e", &evaluating), int64_t{4'000'000'000});
  EXPECT_EQ(with->memory.report.reserved(), without->memory.report.reserved());
  CachingAllocator trains_first;
  const int64_t planned = replay("tte", &trains_first);
  for (const char* const order : {"tete", "teeeeetttt", "eett"}) {
    CachingAllocator pool;
    EXPECT_EQ(replay(order, &pool), planned) << order;
  }
}

// The gradients of weights have a stream of their own, which computes nothing
// yet when the head's runs.
TEST(MemoryPlanTest, AWorkspaceCountsFromTheFirstProductOfAGraph) {
  const auto plan = [](const std::string& vocabulary) {
    return PlanRun(Config({"execution.mode=GRAPH",
                           "execution.overlap_weight_gradients=true",
                           "model.vocab_size=" + vocabulary}),
                   {}, DeviceToPlanFor("H200").value())
        ->memory;
  };
  const PlannedMemory head = plan("50000"), block = plan("500");
  EXPECT_EQ(head.peak, "the backward of head/lm_head+cross_entropy");
  EXPECT_EQ(head.report.libraries, 32 << 20);
  EXPECT_GE(head.report.fragmentation, 32 << 20);  // where the second will be
  EXPECT_NE(block.peak, head.peak);
  EXPECT_EQ(block.report.libraries, 64 << 20);
}

// A graph has segments of its own.
TEST(MemoryPlanTest, AGraphSharesNoSegmentWithBuffers) {
  const auto reserved = [](const std::string& mode) {
    return PlanRun(Config({"execution.storage=ARENA", "execution.mode=" + mode,
                           "execution.overlap_weight_gradients=false"}),
                   {}, DeviceToPlanFor("H200").value())
        ->memory.report.reserved();
  };
  EXPECT_GT(reserved("GRAPH"), reserved("EAGER"));
}

// The allocator returns free segments before it gives up, so a run may fit into
// less than it would reserve, but not into less than it allocates.
TEST(MemoryPlanTest, FitsIfTheAllocatorGetsBy) {
  const RunConfig config =
      Config({"execution.mode=EAGER", "model.context_length=512",
              "recompute.policy=FFN"});
  DeviceInfo device = DeviceToPlanFor("H200").value();
  const MemoryReport roomy = PlanRun(config, {}, device)->memory.report;
  ASSERT_GT(roomy.fragmentation, 32 << 20);
  device.total_bytes = roomy.total();
  EXPECT_TRUE(PlanRun(config, {}, device).ok());
  device.total_bytes = roomy.total() - roomy.fragmentation / 2;
  const auto tight = PlanRun(config, {}, device);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(tight->memory.report.total(), device.total_bytes);
  EXPECT_EQ(tight->memory.report.allocated(), roomy.allocated());
  device.total_bytes = roomy.allocated() + roomy.context - 1;
  EXPECT_EQ(PlanRun(config, {}, device).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tessera
