#include "models/transformer_lm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cctype>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "attention_backends/backend_table.h"
#include "attention_backends/select_backend.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/precision/precision_config.h"
#include "framework/program/executor.h"
#include "framework/program/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_shape.h"
#include "tests/models/sized_model.h"
#include "tests/testing/weights.h"
#include "trainers/plan/step_plan.h"

namespace tessera {
namespace {

ModelShape Tiny() {
  ModelShape shape = Sized(48, 80, 3, 6);
  shape.vocab = 101;
  shape.context = 17;
  return shape;
}

// A precision mode, or FP64, in which any deviation is an error in an equation.
using Mode = std::optional<PrecisionConfig::Mode>;
constexpr Mode kFp64 = std::nullopt;

PrecisionPolicy PolicyOf(Mode mode, bool cuda) {
  if (mode == kFp64) return PrecisionPolicy::Uniform(at::kDouble);
  PrecisionConfig config;
  config.set_mode(*mode);
  return CreatePrecisionPolicy(config, 1, cuda).value();
}

RecomputeConfig Recompute(RecomputeConfig::Policy policy, int every = 1) {
  RecomputeConfig config;
  config.set_policy(policy);
  config.set_every(every);
  return config;
}

// Where the tensors of the step are stored.
enum class Place { kApart, kInGradients, kArena };

struct FixtureOptions {
  ModelShape shape = Tiny();
  RecomputeConfig recompute;
  Mode mode = PrecisionConfig::FP32;
  at::DeviceType device = at::kCPU;
  std::vector<std::string> frozen;
  Place place = Place::kApart;
  bool fuse = true;
  std::optional<PrecisionPolicy> policy;  // default: that of `mode`
  TrainingObjective objective;
};

// A model with its store, and the results of a forward and backward pass.
struct Fixture {
  explicit Fixture(const FixtureOptions& options) : shape(options.shape) {
    const bool cuda = options.device == at::kCUDA;
    target = {
        .device = cuda ? OpenCudaDevice(0).value() : CpuDevice(),
        .precision = options.policy.value_or(PolicyOf(options.mode, cuda)),
        .frozen = options.frozen};
    lm = {.shape = shape,
          .batch = 2,
          .sequence = shape.context,
          .backend = FindBackend("NAIVE"),
          .attention = AttentionProblemOf(shape, 2, shape.context,
                                          /*needs_grad=*/true, target),
          .objective = options.objective};
    StepPlanOptions step = {.lm = lm, .recompute = options.recompute};
    // With several micro-batches, the gradient buffer is not idle.
    step.micro_batches = options.place == Place::kApart ? 2 : 1;
    step.execution.set_storage(options.place == Place::kArena
                                   ? ExecutionConfig::ARENA
                                   : ExecutionConfig::ALLOCATOR);
    step.execution.mutable_fuse()->set_head_loss(options.fuse);
    step.execution.mutable_fuse()->set_residual_norm(options.fuse);
    plan = PlanStep(step, target).value();
    const PrecisionPolicy& policy = target.precision;
    store = ParameterStore::Create(plan->loss.program.parameters(),
                                   {.device = target.device.device,
                                    .weights = {policy[OpClass::kMasterWeights],
                                                policy[OpClass::kWeights]},
                                    .gradient = policy[OpClass::kGradient],
                                    .seed = 5})
                .value();
    executor =
        std::make_unique<Executor>(plan->train, plan->train_lifetimes, *store,
                                   ExecutorOptions{.tasks = &no_tasks});
    const at::Tensor tokens = at::arange(2 * (shape.context + 1), at::kLong)
                                  .mul(7919)
                                  .remainder(shape.vocab)
                                  .to(target.device.device);
    ids = tokens.view({2, -1}).narrow(1, 0, shape.context).contiguous();
    targets = tokens.view({2, -1}).narrow(1, 1, shape.context).contiguous();
    targets[1][3] = kIgnoredTarget;
  }

  void Forward() {
    executor->SetInput(plan->loss.ids, ids);
    executor->SetInput(plan->loss.targets, targets);
    executor->Run(0, plan->train.FirstBackward());
  }
  // Returns the loss.
  double Run() {
    Forward();
    const int seed = plan->train.loss_gradient;
    executor->SetInput(
        seed, at::ones({}, at::device(target.device.device)
                               .dtype(plan->train.values[seed].type.dtype)));
    // Runs only the first micro-batch.
    const auto end = absl::c_find_if(plan->train.runs, [](const StepRun& run) {
      return run.micro_batch == 1;
    });
    executor->Run(plan->train.FirstBackward(),
                  static_cast<int>(end - plan->train.runs.begin()));
    store->ZeroGradientGaps();
    return executor->Get(plan->loss.loss).item<double>();
  }
  at::Tensor Grad(const ParameterSlice& slice) const {
    return store->grad().narrow(0, slice.offset, slice.numel);
  }

  ModelShape shape;
  ProgramTarget target;
  LmOptions lm;
  std::shared_ptr<const StepPlan> plan;
  std::unique_ptr<ParameterStore> store;
  // The test does itself what a step does around the passes.
  struct NoTasks : TaskRunner {
    void Run(const Task&, absl::Span<const at::Tensor>,
             absl::Span<const at::Tensor>) override {}
  } no_tasks;
  std::unique_ptr<Executor> executor;
  at::Tensor ids, targets;
};

// The same model in plain ATen, with leaf tensors and autograd.
class PlainModel {
 public:
  PlainModel(const ModelShape& shape, const ParameterStore& store)
      : shape_(shape) {
    const at::Tensor weights = WeightsOf(store).to(at::kDouble);
    for (const ParameterSlice& slice : store.slices()) {
      weights_[slice.name] = weights.narrow(0, slice.offset, slice.numel)
                                 .view(slice.shape)
                                 .clone()
                                 .requires_grad_();
    }
  }

  at::Tensor Logits(const at::Tensor& ids) {
    at::Tensor x = at::embedding(W("token_embeddings.weight"), ids);
    for (int64_t i = 0; i < shape_.layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      const auto add = [&](const std::string& gain, const auto& branch) {
        const at::Tensor& g = W(layer + gain);
        x = x + (shape_.norm_placement == NormPlacement::kBefore
                     ? branch(Norm(x, g))
                     : Norm(branch(x), g));
      };
      add("ln1.weight", [&](const at::Tensor& y) {
        return Attention(y, layer, shape_.window(i));
      });
      add("ln2.weight",
          [&](const at::Tensor& y) { return FeedForward(y, layer); });
    }
    const at::Tensor logits = Times(
        Norm(x, W("ln_final.weight")),
        W(shape_.tied_head ? "token_embeddings.weight" : "lm_head.weight"));
    const double cap = shape_.logit_soft_cap;
    return cap == 0 ? logits : at::tanh(logits / cap) * cap;
  }
  at::Tensor LossSum(const at::Tensor& ids, const at::Tensor& targets) {
    return at::cross_entropy_loss(Logits(ids).flatten(0, 1), targets.flatten(),
                                  {}, at::Reduction::Sum, kIgnoredTarget);
  }

  const at::Tensor& W(const std::string& name) { return weights_.at(name); }

 private:
  static at::Tensor Times(const at::Tensor& x, const at::Tensor& w) {
    return at::matmul(x, w.t());
  }
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& gain) const {
    return x * (x.square().mean(-1, true) + shape_.norm_eps).rsqrt() * gain;
  }
  // x: [B, S, N, D] -> rotated, [B, N, S, D].
  at::Tensor Rotate(const at::Tensor& x) const {
    const int64_t d = shape_.head_dim();
    const at::Tensor frequency =
        at::pow(shape_.rope.theta, at::arange(0, d, 2, at::kDouble) / -d);
    const at::Tensor angle =
        at::arange(x.size(1), at::kDouble).unsqueeze(1) * frequency;
    // The table in FP32, as the op reads it.
    const auto round = [](const at::Tensor& x) {
      return x.to(at::kFloat).to(at::kDouble);
    };
    const at::Tensor turn = at::complex(round(angle.cos()), round(angle.sin()));
    const at::Tensor pairs =
        at::view_as_complex(x.unflatten(-1, {d / 2, 2}).contiguous());
    return at::view_as_real(pairs * turn.unsqueeze(1))
        .flatten(-2)
        .transpose(1, 2);
  }
  at::Tensor FeedForward(const at::Tensor& y, const std::string& layer) {
    const at::Tensor a = Times(y, W(layer + "ffn.w1.weight"));
    const at::Tensor h =
        shape_.relu_squared
            ? at::relu(a).square()
            : at::silu(a) * Times(y, W(layer + "ffn.w3.weight"));
    return Times(h, W(layer + "ffn.w2.weight"));
  }
  at::Tensor Attention(const at::Tensor& y, const std::string& layer,
                       int64_t window) {
    const int64_t d = shape_.head_dim(), s = y.size(1);
    auto heads = [&](const char* name, int64_t n) {
      return Times(y, W(layer + "attn." + name + ".weight"))
          .unflatten(-1, {n, d});
    };
    const int64_t repeat = shape_.heads / shape_.kv_heads;
    // q_norm or k_norm of x: [B, S, N, D].
    auto norm = [&](const char* name, const at::Tensor& x) {
      if (shape_.qk_norm == QkNormForm::kNone) return x;
      const at::Tensor& gain = W(layer + "attn." + name + ".weight");
      if (shape_.qk_norm == QkNormForm::kHead) return Norm(x, gain);
      return Norm(x.flatten(2), gain).view_as(x);
    };
    const at::Tensor q = Rotate(norm("q_norm", heads("q_proj", shape_.heads)));
    const at::Tensor k =
        Rotate(norm("k_norm", heads("k_proj", shape_.kv_heads)))
            .repeat_interleave(repeat, 1);
    const at::Tensor v = heads("v_proj", shape_.kv_heads)
                             .transpose(1, 2)
                             .repeat_interleave(repeat, 1);
    at::Tensor hidden = at::ones({s, s}, at::kBool).triu(1);
    if (window > 0) hidden |= at::ones({s, s}, at::kBool).tril(-window);
    at::Tensor scores =
        at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
    if (const double cap = shape_.attention_soft_cap; cap != 0) {
      scores = at::tanh(scores / cap) * cap;
    }
    const at::Tensor o =
        at::matmul(scores.masked_fill(hidden, -INFINITY).softmax(-1), v);
    return Times(o.transpose(1, 2).flatten(2),
                 W(layer + "attn.output_proj.weight"));
  }

  const ModelShape shape_;
  std::map<std::string, at::Tensor> weights_;
};

// Parameter tuples that start with a device.
template <typename Param>
class DeviceTest : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (std::get<0>(this->GetParam()) == at::kCUDA && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
  }
};

constexpr auto kPolicies = {RecomputeConfig::NONE, RecomputeConfig::BLOCK,
                            RecomputeConfig::ATTENTION, RecomputeConfig::FFN};

// Largest errors of loss and gradients, relative to their norms: the rounding
// of that many bits over these few layers. A wrong cast, scale or sum causes a
// far larger error.
struct Bounds {
  double loss, gradient;
};
Bounds BoundsOf(Mode mode) {
  if (mode == kFp64) return {1e-12, 1e-11};
  if (*mode == PrecisionConfig::FP32) return {2e-6, 5e-6};
  return {4e-3, 0.05};
}

class PlainModelTest
    : public DeviceTest<
          std::tuple<at::DeviceType, Mode, RecomputeConfig::Policy>> {
 protected:
  // Compares loss and gradients with LibTorch's autograd in FP64.
  static void ExpectEqualsPlainModel(const ModelShape& shape) {
    const auto [device, mode, policy] = GetParam();
    Fixture ours({.shape = shape,
                  .recompute = Recompute(policy),
                  .mode = mode,
                  .device = device,
                  .place = Place::kInGradients});
    const double loss = ours.Run();
    PlainModel plain(shape, *ours.store);
    const at::Tensor expected =
        plain.LossSum(ours.ids.cpu(), ours.targets.cpu());
    torch::autograd::backward({expected}, {});
    const Bounds bounds = BoundsOf(mode);
    EXPECT_NEAR(loss, expected.item<double>(),
                bounds.loss * expected.item<double>());
    for (const ParameterSlice& slice : ours.store->slices()) {
      const at::Tensor grad =
          ours.Grad(slice).view(slice.shape).to(at::kCPU, at::kDouble);
      const at::Tensor oracle = plain.W(slice.name).grad();
      EXPECT_LT(((grad - oracle).norm() / oracle.norm()).item<double>(),
                bounds.gradient)
          << slice.name;
    }
  }
};

TEST_P(PlainModelTest, LossAndGradientsEqualPlainAutograd) {
  ExpectEqualsPlainModel(Tiny());
}

TEST_P(PlainModelTest, TiedHeadAndGroupedHeadsEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.tied_head = true;
  shape.kv_heads = 2;
  ExpectEqualsPlainModel(shape);
}

TEST_P(PlainModelTest, NormsAfterAndOwnHeadDimEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.norm_placement = NormPlacement::kAfter;
  shape.own_head_dim = 16;
  shape.qk_norm = QkNormForm::kProjection;
  ExpectEqualsPlainModel(shape);
}

TEST_P(PlainModelTest, OneHeadAndOneHiddenUnitEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.heads = shape.kv_heads = 1;
  shape.d_ff = 1;
  ExpectEqualsPlainModel(shape);
}

TEST_P(PlainModelTest, SquaredReluEqualsPlainAutograd) {
  ModelShape shape = Tiny();
  shape.relu_squared = true;
  ExpectEqualsPlainModel(shape);
}

TEST_P(PlainModelTest, WindowsEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.windows = {3, 0};
  ExpectEqualsPlainModel(shape);
}

TEST_P(PlainModelTest, QkNormEqualsPlainAutograd) {
  for (const QkNormForm form : {QkNormForm::kHead, QkNormForm::kProjection}) {
    SCOPED_TRACE(static_cast<int>(form));
    ModelShape shape = Tiny();
    shape.kv_heads = 2;
    shape.qk_norm = form;
    ExpectEqualsPlainModel(shape);
  }
}

// The logits have variance 1.
TEST_P(PlainModelTest, CappedLogitsEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.logit_soft_cap = 1;
  ExpectEqualsPlainModel(shape);
}

TEST_P(PlainModelTest, CappedScoresEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.attention_soft_cap = 0.5;
  ExpectEqualsPlainModel(shape);
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, PlainModelTest,
    testing::Combine(testing::Values(at::kCPU),
                     testing::Values(kFp64, PrecisionConfig::FP32,
                                     PrecisionConfig::BF16,
                                     PrecisionConfig::BF16_PURE),
                     testing::ValuesIn(kPolicies)));
INSTANTIATE_TEST_SUITE_P(
    Gpu, PlainModelTest,
    testing::Combine(testing::Values(at::kCUDA),
                     testing::Values(kFp64, PrecisionConfig::FP32,
                                     PrecisionConfig::TF32,
                                     PrecisionConfig::BF16,
                                     PrecisionConfig::FP16,
                                     PrecisionConfig::BF16_PURE),
                     testing::ValuesIn(kPolicies)));

// Each row of the policy's table that a program follows is the dtype of one of
// its values and affects the results.
using PolicyRowTest =
    testing::TestWithParam<std::pair<OpClass, at::ScalarType>>;

TEST_P(PolicyRowTest, AffectsTheRun) {
  const auto [op, dtype] = GetParam();
  const PrecisionPolicy all = PolicyOf(PrecisionConfig::FP32, false);
  Fixture before({.policy = all});
  Fixture after({.policy = all.With(op, dtype)});
  const bool inside_an_op = op == OpClass::kMatmul || op == OpClass::kLogits;
  const auto has = [&, dtype = dtype](const Fixture& fixture) {
    for (const ValueInfo& value : fixture.plan->train.values) {
      if (value.type.dtype == dtype) return true;
    }
    return fixture.store->grad().scalar_type() == dtype;
  };
  if (!inside_an_op) {
    EXPECT_TRUE(has(after));
    EXPECT_FALSE(has(before));
  }
  const double loss = before.Run();
  const double other = after.Run();
  EXPECT_NEAR(loss, other, 0.02 * loss);
  EXPECT_FALSE(loss == other && at::equal(before.store->grad(),
                                          after.store->grad().to(at::kFloat)));
}

INSTANTIATE_TEST_SUITE_P(
    Each, PolicyRowTest,
    testing::Values(std::pair(OpClass::kMasterWeights, at::kBFloat16),
                    std::pair(OpClass::kWeights, at::kBFloat16),
                    std::pair(OpClass::kMatmul, at::kBFloat16),
                    std::pair(OpClass::kAttention, at::kBFloat16),
                    std::pair(OpClass::kNormStatistics, at::kDouble),
                    std::pair(OpClass::kResidual, at::kBFloat16),
                    std::pair(OpClass::kActivation, at::kBFloat16),
                    std::pair(OpClass::kLogits, at::kBFloat16),
                    std::pair(OpClass::kLoss, at::kDouble),
                    std::pair(OpClass::kGradient, at::kBFloat16)),
    [](const auto& info) {
      std::string name(OpClassName(info.param.first));
      for (char& c : name) c = std::isalnum(c) ? c : '_';
      return name;
    });

TEST(PolicyTest, BackendsRejectAnUnsupportedSoftmax) {
  const ProgramTarget target = {
      .precision = PolicyOf(PrecisionConfig::BF16, false)
                       .With(OpClass::kSoftmax, at::kBFloat16)};
  const absl::Status refusal =
      SelectBackend(BackendRequest(),
                    AttentionProblemOf(Tiny(), 2, 17, true, target))
          .status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refusal.message()),
              testing::HasSubstr("in Float, not in BFloat16"));
}

// In a new model all tokens are about equally likely, with or without a tied
// head.
TEST(TransformerLmTest, AFreshModelPredictsAllTokensEqually) {
  for (bool tied_head : {false, true}) {
    ModelShape shape = Sized(64, 172, 2, 4);
    shape.context = 32;
    shape.tied_head = tied_head;
    Fixture fresh({.shape = shape});
    const double targets = fresh.targets.ne(kIgnoredTarget).sum().item<int>();
    // Logits of variance 1 cost half a nat.
    EXPECT_NEAR(fresh.Run() / targets, std::log(shape.vocab), 0.7)
        << (tied_head ? "tied" : "untied");
  }
}

class PlaceTest
    : public DeviceTest<
          std::tuple<at::DeviceType, Mode, RecomputeConfig::Policy>> {
 protected:
  // Checks that loss and gradients are bitwise the same for all storages.
  static void ExpectSameBits(const ModelShape& shape,
                             std::vector<std::string> frozen = {}) {
    const auto [device, mode, policy] = GetParam();
    FixtureOptions options = {.shape = shape,
                              .recompute = Recompute(policy, 2),
                              .mode = mode,
                              .device = device,
                              .frozen = std::move(frozen)};
    Fixture apart(options);
    const double loss = apart.Run();
    for (const Place place : {Place::kInGradients, Place::kArena}) {
      options.place = place;
      Fixture other(options);
      other.store->grad().fill_(NAN);
      EXPECT_EQ(loss, other.Run());
      EXPECT_TRUE(at::equal(apart.store->grad(), other.store->grad()));
      EXPECT_EQ(loss, other.Run()) << "a second time";
      EXPECT_TRUE(at::equal(apart.store->grad(), other.store->grad()));
    }
  }
};

TEST_P(PlaceTest, SameBits) { ExpectSameBits(Tiny()); }

TEST_P(PlaceTest, SameBitsWithTiedHeadAndGroups) {
  ModelShape shape = Tiny();
  shape.tied_head = true;
  shape.kv_heads = 2;
  ExpectSameBits(shape);
}

TEST_P(PlaceTest, SameBitsWithQkNorm) {
  ModelShape shape = Tiny();
  shape.kv_heads = 2;
  shape.qk_norm = QkNormForm::kHead;
  ExpectSameBits(shape);
  ExpectSameBits(shape, {"layers.1.attn.k_norm.weight"});
}

TEST_P(PlaceTest, SameBitsWithFrozenParts) {
  ExpectSameBits(Tiny(), {"layers.1.*", "token_embeddings.weight"});
}

TEST_P(PlaceTest, SameBitsIfMostDoesNotFit) {
  ModelShape shape = Tiny();
  shape.context = 100;
  ExpectSameBits(shape);
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, PlaceTest,
    testing::Combine(testing::Values(at::kCPU),
                     testing::Values(PrecisionConfig::FP32,
                                     PrecisionConfig::BF16),
                     testing::ValuesIn(kPolicies)));
INSTANTIATE_TEST_SUITE_P(
    Gpu, PlaceTest,
    testing::Combine(testing::Values(at::kCUDA),
                     testing::Values(PrecisionConfig::FP32,
                                     PrecisionConfig::BF16,
                                     PrecisionConfig::BF16_PURE),
                     testing::ValuesIn(kPolicies)));

TEST(TransformerLmTest, ActivationsLieInTheGradientBuffer) {
  Fixture fixture({.place = Place::kInGradients});
  fixture.store->grad().zero_();
  fixture.Forward();
  const double used = fixture.store->grad().ne(0).sum().item<double>();
  // For each token, at least the residual after every half of a block.
  const ModelShape& shape = fixture.shape;
  EXPECT_GT(used, 2 * 2 * shape.context * shape.d_model * shape.layers);
}

class FusionTest : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
  }
};

// On a GPU the fused loss pads rows of logits to 16 bytes: with another length
// products would not be the same.
ModelShape TinyWithAlignedLogits() {
  ModelShape shape = Tiny();
  shape.vocab = 104;
  return shape;
}

// The logits of this model are one chunk.
TEST_P(FusionTest, ChangesNoBit) {
  for (const RecomputeConfig::Policy policy : kPolicies) {
    SCOPED_TRACE(RecomputeConfig::Policy_Name(policy));
    for (const std::vector<std::string>& frozen :
         {std::vector<std::string>{}, {"token_embeddings.*", "layers.0.*"}}) {
      const FixtureOptions options = {.shape = TinyWithAlignedLogits(),
                                      .recompute = Recompute(policy, 1),
                                      .mode = PrecisionConfig::BF16,
                                      .device = GetParam(),
                                      .frozen = frozen};
      FixtureOptions apart_options = options;
      apart_options.fuse = false;
      Fixture fused(options), apart(apart_options);
      EXPECT_LT(fused.plan->loss.program.ops().size(),
                apart.plan->loss.program.ops().size());
      EXPECT_EQ(fused.Run(), apart.Run());
      EXPECT_TRUE(at::equal(fused.store->grad(), apart.store->grad()));
      // A second micro-batch overwrites nothing that the first has left.
      EXPECT_EQ(fused.Run(), apart.Run());
      EXPECT_TRUE(at::equal(fused.store->grad(), apart.store->grad()));
      const auto kept = [](const Fixture& f) {
        return KeptBytes(f.plan->train, f.plan->train_lifetimes);
      };
      EXPECT_LE(kept(fused), kept(apart));
    }
  }
}

TEST_P(FusionTest, ChangesNoBitUnderASoftCapAndAnObjective) {
  FixtureOptions options = {
      .shape = TinyWithAlignedLogits(),
      .mode = PrecisionConfig::BF16,
      .device = GetParam(),
      .objective = {.label_smoothing = 0.1, .z_loss = 0.01}};
  options.shape.logit_soft_cap = 1;
  FixtureOptions apart_options = options;
  apart_options.fuse = false;
  Fixture fused(options), apart(apart_options);
  EXPECT_EQ(fused.Run(), apart.Run());
  EXPECT_TRUE(at::equal(fused.store->grad(), apart.store->grad()));
}

INSTANTIATE_TEST_SUITE_P(Cpu, FusionTest, testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, FusionTest, testing::Values(at::kCUDA));

TEST(TransformerLmTest, FrozenBlocksHaveNoGradientAndOthersAreUnchanged) {
  Fixture all({});
  all.Run();
  Fixture part({.frozen = {"layers.1.*", "token_embeddings.weight"}});
  part.Run();
  for (const ParameterSlice& slice : part.store->slices()) {
    if (!slice.trainable) continue;
    for (const ParameterSlice& other : all.store->slices()) {
      if (other.name != slice.name) continue;
      EXPECT_TRUE(at::equal(part.Grad(slice), all.Grad(other))) << slice.name;
    }
  }
  EXPECT_FALSE(part.store->Get("layers.1.ffn.w2.weight").grad().defined());
}

using RecomputeTest =
    DeviceTest<std::tuple<at::DeviceType, RecomputeConfig::Policy, int, Mode>>;

TEST_P(RecomputeTest, LossAndEveryGradientAreTheSameBits) {
  const auto [device, policy, every, mode] = GetParam();
  Fixture plain({.mode = mode, .device = device});
  Fixture recomputed(
      {.recompute = Recompute(policy, every), .mode = mode, .device = device});
  EXPECT_EQ(plain.Run(), recomputed.Run());
  EXPECT_TRUE(at::equal(plain.store->grad(), recomputed.store->grad()));
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, RecomputeTest,
    testing::Combine(
        testing::Values(at::kCPU),
        testing::Values(RecomputeConfig::BLOCK, RecomputeConfig::ATTENTION,
                        RecomputeConfig::FFN),
        testing::Values(1, 2),
        testing::Values(PrecisionConfig::FP32, PrecisionConfig::BF16)));
INSTANTIATE_TEST_SUITE_P(
    Gpu, RecomputeTest,
    testing::Combine(
        testing::Values(at::kCUDA),
        testing::Values(RecomputeConfig::BLOCK, RecomputeConfig::ATTENTION,
                        RecomputeConfig::FFN),
        testing::Values(1, 2),
        testing::Values(PrecisionConfig::FP32, PrecisionConfig::BF16)));

// The planned bytes that each part of the model keeps: "block_2/ffn".
std::map<std::string, int64_t> KeptByPart(const RecomputeConfig& recompute) {
  ModelShape shape = Tiny();
  shape.layers = 5;
  Fixture fixture({.shape = shape, .recompute = recompute});
  fixture.Forward();
  const StepPlan& plan = *fixture.plan;
  // The executor holds exactly the planned bytes.
  EXPECT_EQ(fixture.executor->live_bytes(),
            KeptBytes(plan.train, plan.train_lifetimes));
  std::map<std::string, int64_t> parts;
  const int end = plan.train.FirstBackward();
  for (int run = 0; run < end; ++run) {
    if (plan.train.runs[run].op < 0) continue;
    const OpNode& node = plan.loss.program.ops()[plan.train.runs[run].op];
    parts[plan.loss.program.ScopePath(node.scope)] +=
        KeptBytesOf(plan.train, plan.train_lifetimes, run);
  }
  return parts;
}

TEST(TransformerLmTest, EveryKthBlockIsRecomputedFromTheFirst) {
  // The residual after a half is kept: 2 x 17 x 48 in FP32.
  constexpr int64_t kResidual = 2 * 17 * 48 * 4;
  const auto kept = KeptByPart({});
  for (const auto policy : {RecomputeConfig::BLOCK, RecomputeConfig::ATTENTION,
                            RecomputeConfig::FFN}) {
    for (const int every : {1, 2, 3, 5, 6}) {
      const auto saved = KeptByPart(Recompute(policy, every));
      for (int layer = 0; layer < 5; ++layer) {
        const bool recomputes = layer % every == 0;
        const std::string block = "block_" + std::to_string(layer);
        SCOPED_TRACE(block + " of " + RecomputeConfig::Policy_Name(policy) +
                     " every " + std::to_string(every));
        const bool attention = recomputes && policy != RecomputeConfig::FFN;
        const bool ffn = recomputes && policy != RecomputeConfig::ATTENTION;
        // If the whole block is dropped, so is its first residual.
        EXPECT_EQ(saved.at(block + "/attention"),
                  !attention ? kept.at(block + "/attention")
                  : policy == RecomputeConfig::BLOCK ? 0
                                                     : kResidual);
        EXPECT_EQ(saved.at(block + "/ffn"),
                  ffn ? kResidual : kept.at(block + "/ffn"));
        EXPECT_GT(kept.at(block + "/ffn"), 2 * kResidual);
      }
    }
  }
}

// Tokens after the position have no effect.
TEST(TransformerLmTest, NextTokenLogitsMatchThePlainModel) {
  for (const auto& [cap, form] :
       {std::pair(0.0f, QkNormForm::kNone), std::pair(1.0f, QkNormForm::kHead),
        std::pair(0.0f, QkNormForm::kProjection)}) {
    SCOPED_TRACE(testing::Message() << cap << " " << static_cast<int>(form));
    ModelShape shape = Tiny();
    shape.logit_soft_cap = cap;
    shape.qk_norm = form;
    Fixture fixture({.shape = shape});
    PlainModel plain(fixture.shape, *fixture.store);
    const at::Tensor all = plain.Logits(fixture.ids);
    LmOptions lm = fixture.lm;
    lm.attention.needs_grad = false;
    const NextTokenProgram next =
        BuildNextTokenProgram(lm, fixture.target).value();
    const Schedule schedule = ForwardSchedule(next.program);
    Executor executor(schedule, PlanLifetimes(schedule), *fixture.store);
    executor.SetInput(next.ids, fixture.ids);
    for (const int64_t position :
         {int64_t{0}, all.size(1) / 2, all.size(1) - 1}) {
      executor.SetInput(next.position, at::full({1}, position, at::kLong));
      executor.Run();
      EXPECT_TRUE(
          at::allclose(executor.Get(next.logits).select(1, 0).to(at::kDouble),
                       all.select(1, position), 1e-4, 1e-5))
          << position;
    }
  }
}

}  // namespace
}  // namespace tessera
