// Steps with a loss scaler: backing off, continuing, and giving up.

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "framework/optim/optimizer.h"
#include "framework/optim/optimizer_config.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_group.h"
#include "tests/testing/weights.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

// The parts of a session with another step, which scales the loss. Products are
// in FP32, so that the rules can be tested on a CPU.
struct ScaledToy {
  ScaledToy(double initial_scale, const std::vector<std::string>& more = {},
            ProcessGroup* group = nullptr)
      : session(Toy("configs/tiny_cpu.pbtxt", more)),
        scaler({.initial_scale = initial_scale}, at::kCPU),
        plan(group != nullptr ? OfTwoRanks(session->plan().config)
                              : session->plan()),
        parameters(MakeParameters(plan).value()),
        optimizer(OptimizerOf(plan, *parameters)),
        step({.plan = plan.step.get(),
              .parameters = parameters.get(),
              .optimizer = optimizer.get(),
              .group = group != nullptr ? group : &session->group(),
              .shards = group != nullptr ? group : &session->group(),
              .scaler = &scaler,
              .clip_norm = 1.0}) {}

  static std::unique_ptr<Optimizer> OptimizerOf(const RunPlan& plan,
                                                ParameterStore& store) {
    const OptimizerConfig& config = plan.config.optimizer();
    return Optimizer::Create(AdamWOptionsOf(config.adamw()),
                             ParameterGroupsOf(config.adamw()),
                             MuonOptionsOf(config), store, plan.precision)
        .value();
  }

  // The step of one of two ranks, which take a batch like this config's each.
  static RunPlan OfTwoRanks(RunConfig config) {
    config.mutable_training()->set_batch_size(2 *
                                              config.training().batch_size());
    return PlanRun(config, {.world_size = 2, .local_world_size = 2}).value();
  }

  at::Tensor weights() { return WeightsOf(*parameters); }

  std::unique_ptr<Session> session;
  LossScaler scaler;
  RunPlan plan;
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<Optimizer> optimizer;
  TrainStep step;
};

TEST(LossScalingTest, OverflowsAreSkippedAndOtherStepsMatchUnscaledOnes) {
  const std::vector<std::string> accumulated = {"training.micro_batches=2",
                                                "optimizer.clip_norm=1.0"};
  const auto plain = Toy("configs/tiny_cpu.pbtxt", accumulated);
  ScaledToy scaled(0x1p127, accumulated);
  const at::Tensor initial = scaled.weights().clone();
  int64_t skipped = 0;
  while (scaled.scaler.skipped_steps().item<int64_t>() == skipped) {
    ASSERT_TRUE(at::equal(scaled.weights(), initial));
    ASSERT_LT(skipped, 100);
    Train(*scaled.session, scaled.step, 0, 1);
    ++skipped;
  }
  EXPECT_GT(skipped, 1);
  EXPECT_EQ(scaled.scaler.scale().item<double>(),
            std::ldexp(1.0, 128 - static_cast<int>(skipped)));
  EXPECT_FALSE(scaled.step.first_bad_step().has_value());
  // The last of those steps did not overflow. Powers of two cause no rounding.
  Train(*plain, 1);
  EXPECT_TRUE(
      at::equal(scaled.weights(), WeightsOf(*plain->state().parameters)));
  EXPECT_EQ(Train(*scaled.session, scaled.step, 1, 3),
            Train(*plain, plain->step(), 1, 3));
}

TEST(LossScalingTest, ANonFiniteLossEndsUpdatesImmediately) {
  ScaledToy scaled(65536);
  Train(*scaled.session, scaled.step, 0, 2);
  SpoilAWeight(*scaled.parameters);
  const at::Tensor before = scaled.weights().clone();
  Train(*scaled.session, scaled.step, 2, 3);
  EXPECT_EQ(scaled.step.first_bad_step(), 2);
  EXPECT_TRUE(at::allclose(before, scaled.weights(), 0, 0, /*equal_nan=*/true));
}

// Two ranks, of which the other's gradients overflow with every loss scale.
class OverflowingGroup : public FakeGroup {
 public:
  absl::Status ReduceScatterSum(const at::Tensor&,
                                const at::Tensor& shard) override {
    shard[3].fill_(INFINITY);
    return {};
  }
};

TEST(LossScalingTest, AnOverflowThatNoScaleFixesEndsUpdates) {
  OverflowingGroup group;
  ScaledToy scaled(4 * LossScaler::kMinScale, {}, &group);
  const at::Tensor before = scaled.weights().clone();
  Train(*scaled.session, scaled.step, 0, 2);  // down to the minimum scale
  EXPECT_FALSE(scaled.step.first_bad_step().has_value());
  Train(*scaled.session, scaled.step, 2, 2);
  EXPECT_EQ(scaled.step.first_bad_step(), 2);
  EXPECT_TRUE(at::equal(scaled.weights(), before));
}

TEST(LossScalingTest, MuonSkipsAnOverflowAndMatchesUnscaledSteps) {
  const std::vector<std::string> muon = {"optimizer.muon.lr=0.02",
                                         "training.micro_batches=2"};
  const auto plain = Toy("configs/tiny_cpu.pbtxt", muon);
  ScaledToy scaled(0x1p127, muon);
  const at::Tensor initial = scaled.weights().clone();
  while (at::equal(scaled.weights(), initial)) {
    Train(*scaled.session, scaled.step, 0, 1);
    ASSERT_LT(scaled.scaler.skipped_steps().item<int64_t>(), 100);
  }
  EXPECT_GT(scaled.scaler.skipped_steps().item<int64_t>(), 1);
  Train(*plain, 1);
  EXPECT_TRUE(
      at::equal(scaled.weights(), WeightsOf(*plain->state().parameters)));
}

std::unique_ptr<Session> Fp16Toy() {
  return Toy("configs/tiny_gpu.pbtxt",
             {"training.device=CUDA", "precision.mode=FP16",
              "training.micro_batches=2", "data.synthetic.successors=3",
              // The first steps overflow.
              "precision.loss_scaler.initial_scale=1.0995e12",
              "precision.loss_scaler.backoff_factor=0.0625",
              "precision.loss_scaler.growth_interval_steps=7"});
}

TEST(GpuLossScalingTest, Fp16TrainsAndResumesBitForBit) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  const auto straight = Fp16Toy();
  const std::vector<double> losses = Train(*straight, 60);
  const int64_t skipped = straight->scaler()->skipped_steps().item<int64_t>();
  EXPECT_GE(skipped, 2);
  EXPECT_LT(skipped, 30);
  EXPECT_FALSE(straight->step().first_bad_step().has_value());
  EXPECT_LT(losses.back(), losses.front() - 1);

  const auto resumed = Fp16Toy();
  ResumeFrom(*straight, 60, *resumed);
  EXPECT_EQ(Train(*resumed, resumed->step(), 60, 20),
            Train(*straight, straight->step(), 60, 20));
  EXPECT_TRUE(at::equal(WeightsOf(*resumed->state().parameters),
                        WeightsOf(*straight->state().parameters)));
  EXPECT_EQ(resumed->scaler()->ExportState().skipped_steps,
            straight->scaler()->ExportState().skipped_steps);
}

}  // namespace
}  // namespace tessera
