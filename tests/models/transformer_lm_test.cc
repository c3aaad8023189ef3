#include "models/transformer_lm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "framework/autograd/saved_tensors.h"
#include "framework/base/phase_observer.h"
#include "framework/ops/cross_entropy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_shape.h"

namespace tessera {
namespace {

ModelShape Sized(int64_t d_model, int64_t d_ff, int64_t layers, int64_t heads) {
  return {.vocab = 10000,
          .layers = layers,
          .d_model = d_model,
          .heads = heads,
          .kv_heads = heads,
          .d_ff = d_ff,
          .context = 512};
}

ModelShape Tiny() {
  ModelShape shape = Sized(48, 80, 3, 6);
  shape.vocab = 101;
  shape.context = 17;
  return shape;
}

// A model and its store, and what one forward and backward pass gives.
struct Fixture {
  Fixture(const ModelShape& shape, const RecomputeConfig& recompute,
          PrecisionConfig::Mode mode = PrecisionConfig::FP32,
          at::Device device = at::kCPU, PhaseObserver* phases = nullptr) {
    PrecisionConfig precision;
    precision.set_mode(mode);
    const auto policy =
        PrecisionPolicy::Create(precision, 1, device.is_cuda()).value();
    store = ParameterStore::Create(TransformerParameters(shape).value(),
                                   {.device = device,
                                    .master = policy[OpClass::kMasterWeights],
                                    .compute = policy[OpClass::kWeights],
                                    .gradient = policy[OpClass::kGradient],
                                    .seed = 5})
                .value();
    model = std::make_unique<TransformerLm>(
        BlockContext{.shape = shape,
                     .precision = policy,
                     .backend = FindBackend("NAIVE"),
                     .phases = phases},
        *store, recompute);
    const at::Tensor tokens =
        at::arange(2 * (shape.context + 1), at::device(device).dtype(at::kLong))
            .mul(7919)
            .remainder(shape.vocab);
    ids = tokens.view({2, -1}).narrow(1, 0, shape.context).contiguous();
    targets = tokens.view({2, -1}).narrow(1, 1, shape.context).contiguous();
    targets[1][3] = kIgnoredTarget;
  }

  double Run(bool in_gradients = false) {
    store->BeginGradients();
    const at::Tensor loss = in_gradients
                                ? model->LossSumInGradients(ids, targets)
                                : model->LossSum(ids, targets);
    torch::autograd::backward({loss}, {});
    store->ZeroUnwrittenGradients();
    return loss.item<double>();
  }

  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<TransformerLm> model;
  at::Tensor ids, targets;
};

TEST(ModelShapeTest, CountsEqualTheTableToTheLastParameter) {
  EXPECT_EQ(CountParameters(Sized(768, 3072, 12, 12)), 128'625'408);
  EXPECT_EQ(CountParameters(Sized(1024, 4096, 24, 16)), 423'183'360);
  EXPECT_EQ(CountParameters(Sized(1280, 5120, 36, 20)), 969'411'840);
  EXPECT_EQ(CountParameters(Sized(1600, 6400, 48, 25)), 1'998'235'200);
  EXPECT_EQ(CountParameters(Sized(2560, 10240, 32, 32)), 3'406'809'600);
}

TEST(ModelShapeTest, TiedHeadCountsOnceAndGroupedHeadsShrink) {
  ModelShape shape = Sized(768, 3072, 12, 12);
  shape.tied_head = true;
  EXPECT_EQ(CountParameters(shape), 128'625'408 - 10000 * 768);
  shape.kv_heads = 4;
  EXPECT_EQ(CountParameters(shape),
            128'625'408 - 10000 * 768 - 12 * 2 * 8 * 64 * 768);
}

TEST(ModelShapeTest, FrozenPatternsMustMatchWholeBlocks) {
  ModelShape shape = Tiny();
  shape.frozen = {"layers.*.attn.q_proj.weight"};
  EXPECT_THAT(std::string(TransformerParameters(shape).status().message()),
              testing::HasSubstr("only part of layers.0.attn.qkv"));
  shape.frozen = {"encoder.*"};
  EXPECT_THAT(std::string(TransformerParameters(shape).status().message()),
              testing::HasSubstr("matches no parameter"));
}

// The same model in plain ATen, with ordinary leaves and autograd.
class PlainModel {
 public:
  PlainModel(const ModelShape& shape, const ParameterStore& store)
      : shape_(shape) {
    for (const ParameterSlice& slice : store.slices()) {
      weights_[slice.name] = store.master()
                                 .narrow(0, slice.offset, slice.numel)
                                 .view(slice.shape)
                                 .to(at::kCPU, at::kDouble)
                                 .requires_grad_();
    }
  }

  at::Tensor LossSum(const at::Tensor& ids, const at::Tensor& targets) {
    at::Tensor x = at::embedding(W("token_embeddings.weight"), ids);
    for (int64_t i = 0; i < shape_.layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      x = x + Attention(Norm(x, W(layer + "ln1.weight")), layer);
      const at::Tensor y = Norm(x, W(layer + "ln2.weight"));
      const at::Tensor a = Times(y, W(layer + "ffn.w1.weight"));
      const at::Tensor b = Times(y, W(layer + "ffn.w3.weight"));
      x = x + Times(at::silu(a) * b, W(layer + "ffn.w2.weight"));
    }
    const at::Tensor logits = Times(
        Norm(x, W("ln_final.weight")),
        W(shape_.tied_head ? "token_embeddings.weight" : "lm_head.weight"));
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {},
                                  at::Reduction::Sum, kIgnoredTarget);
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
        at::pow(shape_.rope_theta, at::arange(0, d, 2, at::kDouble) / -d);
    const at::Tensor angle =
        at::arange(x.size(1), at::kDouble).unsqueeze(1) * frequency;
    const at::Tensor turn = at::polar(at::ones_like(angle), angle);
    const at::Tensor pairs =
        at::view_as_complex(x.unflatten(-1, {d / 2, 2}).contiguous());
    return at::view_as_real(pairs * turn.unsqueeze(1))
        .flatten(-2)
        .transpose(1, 2);
  }
  at::Tensor Attention(const at::Tensor& y, const std::string& layer) {
    const int64_t d = shape_.head_dim(), s = y.size(1);
    auto heads = [&](const char* name, int64_t n) {
      return Times(y, W(layer + "attn." + name + ".weight"))
          .unflatten(-1, {n, d});
    };
    const int64_t repeat = shape_.heads / shape_.kv_heads;
    const at::Tensor q = Rotate(heads("q_proj", shape_.heads));
    const at::Tensor k =
        Rotate(heads("k_proj", shape_.kv_heads)).repeat_interleave(repeat, 1);
    const at::Tensor v = heads("v_proj", shape_.kv_heads)
                             .transpose(1, 2)
                             .repeat_interleave(repeat, 1);
    const at::Tensor hidden = at::ones({s, s}, at::kBool).triu(1);
    const at::Tensor scores =
        (at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d)))
            .masked_fill(hidden, -INFINITY);
    const at::Tensor o = at::matmul(scores.softmax(-1), v);
    return Times(o.transpose(1, 2).flatten(2),
                 W(layer + "attn.output_proj.weight"));
  }

  const ModelShape shape_;
  std::map<std::string, at::Tensor> weights_;
};

void ExpectEqualsPlainModel(const ModelShape& shape, at::Device device) {
  Fixture ours(shape, {}, PrecisionConfig::FP32, device);
  const double loss = ours.Run();
  PlainModel plain(shape, *ours.store);
  const at::Tensor expected = plain.LossSum(ours.ids.cpu(), ours.targets.cpu());
  torch::autograd::backward({expected}, {});
  EXPECT_NEAR(loss, expected.item<double>(), 2e-6 * expected.item<double>());
  for (const ParameterSlice& slice : ours.store->slices()) {
    const at::Tensor grad = ours.store->grad()
                                .narrow(0, slice.offset, slice.numel)
                                .view(slice.shape)
                                .cpu();
    const at::Tensor oracle = plain.W(slice.name).grad();
    const double error =
        ((grad - oracle).norm() / oracle.norm()).item<double>();
    EXPECT_LT(error, 5e-6) << slice.name;
  }
}

// Parameters that name a device come first.
at::DeviceType DeviceOf(at::DeviceType device) { return device; }
template <typename... Rest>
at::DeviceType DeviceOf(const std::tuple<at::DeviceType, Rest...>& param) {
  return std::get<0>(param);
}

template <typename Param>
class DeviceTest : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (DeviceOf(this->GetParam()) == at::kCUDA && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
  }
};

using PlainModelTest = DeviceTest<at::DeviceType>;

TEST_P(PlainModelTest, LossAndGradientsEqualPlainAutogradInDouble) {
  ExpectEqualsPlainModel(Tiny(), GetParam());
}

TEST_P(PlainModelTest, TiedHeadAndGroupedHeadsEqualPlainAutograd) {
  ModelShape shape = Tiny();
  shape.tied_head = true;
  shape.kv_heads = 2;
  ExpectEqualsPlainModel(shape, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cpu, PlainModelTest, testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, PlainModelTest, testing::Values(at::kCUDA));

// Every token is about as likely as any other, tied head or not.
TEST(TransformerLmTest, AFreshModelKnowsNothing) {
  for (bool tied_head : {false, true}) {
    ModelShape shape = Sized(64, 172, 2, 4);
    shape.context = 32;
    shape.tied_head = tied_head;
    Fixture fresh(shape, {});
    const double targets = fresh.targets.ne(kIgnoredTarget).sum().item<int>();
    // Logits of variance 1 cost half a nat.
    EXPECT_NEAR(fresh.Run() / targets, std::log(shape.vocab), 0.7)
        << (tied_head ? "tied" : "untied");
  }
}

using PrecisionTest =
    DeviceTest<std::tuple<at::DeviceType, PrecisionConfig::Mode>>;

// A whole model in each mode beside FP32, over a wide bound: what is off by a
// wrong cast, scale or accumulation is off by far more than the rounding of
// 8 bits (BF16) or 11 (FP16, TF32).
void ExpectNearFp32(PrecisionConfig::Mode mode, at::Device device) {
  const ModelShape shape = Tiny();
  Fixture exact(shape, {}, PrecisionConfig::FP32, device);
  Fixture rounded(shape, {}, mode, device);
  const double loss = exact.Run();
  EXPECT_NEAR(rounded.Run(), loss, 4e-3 * loss);
  for (const ParameterSlice& slice : exact.store->slices()) {
    const auto grad = [&](const Fixture& fixture) {
      return fixture.store->grad()
          .narrow(0, slice.offset, slice.numel)
          .to(at::kDouble);
    };
    const at::Tensor oracle = grad(exact);
    const double error =
        ((grad(rounded) - oracle).norm() / oracle.norm()).item<double>();
    EXPECT_LT(error, 0.05) << slice.name;
  }
}

TEST_P(PrecisionTest, ModelStaysNearFp32) {
  const auto [device, mode] = GetParam();
  ExpectNearFp32(mode, device);
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, PrecisionTest,
    testing::Combine(testing::Values(at::kCPU),
                     testing::Values(PrecisionConfig::BF16,
                                     PrecisionConfig::BF16_PURE)));
INSTANTIATE_TEST_SUITE_P(
    Gpu, PrecisionTest,
    testing::Combine(testing::Values(at::kCUDA),
                     testing::Values(PrecisionConfig::TF32,
                                     PrecisionConfig::BF16,
                                     PrecisionConfig::FP16,
                                     PrecisionConfig::BF16_PURE)));

class InGradientsTest
    : public DeviceTest<std::tuple<at::DeviceType, PrecisionConfig::Mode,
                                   RecomputeConfig::Policy>> {
 protected:
  // Loss and gradients of `shape` are the same bits wherever activations lie.
  static void ExpectSameBits(const ModelShape& shape) {
    const auto [device, mode, policy] = GetParam();
    RecomputeConfig recompute;
    recompute.set_policy(policy);
    recompute.set_every(2);
    Fixture apart(shape, recompute, mode, device);
    Fixture inside(shape, recompute, mode, device);
    inside.store->grad().fill_(NAN);
    EXPECT_EQ(apart.Run(), inside.Run(/*in_gradients=*/true));
    for (const ParameterSlice& slice : apart.store->slices()) {
      if (!slice.trainable) continue;
      const auto grad = [&](const Fixture& fixture) {
        return fixture.store->grad().narrow(0, slice.offset, slice.numel);
      };
      EXPECT_TRUE(at::equal(grad(apart), grad(inside))) << slice.name;
    }
    EXPECT_TRUE(at::equal(apart.store->grad(), inside.store->grad()));
  }
};

TEST_P(InGradientsTest, SameBits) { ExpectSameBits(Tiny()); }

TEST_P(InGradientsTest, SameBitsWithTiedHeadAndGroups) {
  ModelShape shape = Tiny();
  shape.tied_head = true;
  shape.kv_heads = 2;
  ExpectSameBits(shape);
}

TEST_P(InGradientsTest, SameBitsWithFrozenParts) {
  ModelShape shape = Tiny();
  shape.frozen = {"layers.1.*", "token_embeddings.weight"};
  ExpectSameBits(shape);
}

TEST_P(InGradientsTest, SameBitsWhereMostDoesNotFit) {
  ModelShape shape = Tiny();
  shape.context = 100;
  ExpectSameBits(shape);
}

constexpr auto kPolicies = {RecomputeConfig::NONE, RecomputeConfig::BLOCK,
                            RecomputeConfig::ATTENTION, RecomputeConfig::FFN};
INSTANTIATE_TEST_SUITE_P(
    Cpu, InGradientsTest,
    testing::Combine(testing::Values(at::kCPU),
                     testing::Values(PrecisionConfig::FP32,
                                     PrecisionConfig::BF16),
                     testing::ValuesIn(kPolicies)));
INSTANTIATE_TEST_SUITE_P(
    Gpu, InGradientsTest,
    testing::Combine(testing::Values(at::kCUDA),
                     testing::Values(PrecisionConfig::FP32,
                                     PrecisionConfig::BF16,
                                     PrecisionConfig::BF16_PURE),
                     testing::ValuesIn(kPolicies)));

TEST(TransformerLmTest, ActivationsLieInTheGradientBuffer) {
  Fixture fixture(Tiny(), {});
  fixture.store->grad().zero_();
  fixture.store->BeginGradients();
  const at::Tensor loss =
      fixture.model->LossSumInGradients(fixture.ids, fixture.targets);
  const double used = fixture.store->grad().ne(0).sum().item<double>();
  // Of each token at least the residual after every half of a block.
  const ModelShape shape = Tiny();
  EXPECT_GT(used, 2 * 2 * shape.context * shape.d_model * shape.layers);
}

TEST(TransformerLmTest, FrozenBlocksHaveNoGradientAndOthersAreUnchanged) {
  ModelShape shape = Tiny();
  Fixture all(shape, {});
  all.Run();
  shape.frozen = {"layers.1.*", "token_embeddings.weight"};
  Fixture part(shape, {});
  part.Run();
  for (const ParameterSlice& slice : part.store->slices()) {
    if (!slice.trainable) continue;
    for (const ParameterSlice& other : all.store->slices()) {
      if (other.name != slice.name) continue;
      EXPECT_TRUE(
          at::equal(part.store->grad().narrow(0, slice.offset, slice.numel),
                    all.store->grad().narrow(0, other.offset, other.numel)))
          << slice.name;
    }
  }
  EXPECT_FALSE(part.store->Get("layers.1.ffn.w2.weight").grad().defined());
}

using RecomputeTest =
    DeviceTest<std::tuple<at::DeviceType, RecomputeConfig::Policy, int,
                          PrecisionConfig::Mode>>;

TEST_P(RecomputeTest, LossAndEveryGradientAreTheSameBits) {
  const auto [device, policy, every, mode] = GetParam();
  Fixture plain(Tiny(), {}, mode, device);
  RecomputeConfig config;
  config.set_policy(policy);
  config.set_every(every);
  Fixture recomputed(Tiny(), config, mode, device);
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

// The bytes that autograd saves during each phase, and where they begin the
// phases of the recomputed segments.
class SavedBytesObserver : public PhaseObserver {
 public:
  explicit SavedBytesObserver(const SavedTensorMeter& meter) : meter_(meter) {}

  void Begin(absl::string_view segment) override {
    open_.push_back({open_.empty()
                         ? std::string(segment)
                         : absl::StrCat(open_.back().path, "/", segment),
                     meter_.live_bytes()});
  }
  void End() override {
    saved_[open_.back().path] = meter_.live_bytes() - open_.back().bytes;
    open_.pop_back();
  }

  // By path: "block_2/ffn".
  const std::map<std::string, int64_t>& saved() const { return saved_; }

 private:
  struct Open {
    std::string path;
    int64_t bytes;
  };
  const SavedTensorMeter& meter_;
  std::vector<Open> open_;
  std::map<std::string, int64_t> saved_;
};

// What each half of each block saves in the forward pass.
std::map<std::string, int64_t> SavedByHalf(const RecomputeConfig& recompute) {
  ModelShape shape = Tiny();
  shape.layers = 5;
  const SavedTensorMeter meter;
  SavedBytesObserver observer(meter);
  const Fixture fixture(shape, recompute, PrecisionConfig::FP32, at::kCPU,
                        &observer);
  const at::Tensor loss = fixture.model->LossSum(fixture.ids, fixture.targets);
  std::map<std::string, int64_t> halves;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const char* half : {"/attention", "/ffn"}) {
      const std::string path = absl::StrCat("block_", layer, half);
      halves[path] = observer.saved().at(path);
    }
  }
  return halves;
}

TEST(TransformerLmTest, EveryKthBlockFromTheFirstOnIsRecomputed) {
  const auto kept = SavedByHalf({});
  for (const auto policy : {RecomputeConfig::BLOCK, RecomputeConfig::ATTENTION,
                            RecomputeConfig::FFN}) {
    for (const int every : {1, 2, 3, 5, 6}) {
      RecomputeConfig config;
      config.set_policy(policy);
      config.set_every(every);
      const auto saved = SavedByHalf(config);
      for (int layer = 0; layer < 5; ++layer) {
        for (const auto& [half, other] :
             {std::pair("/attention", RecomputeConfig::FFN),
              std::pair("/ffn", RecomputeConfig::ATTENTION)}) {
          const std::string path = absl::StrCat("block_", layer, half);
          const bool recomputed = layer % every == 0 && policy != other;
          EXPECT_EQ(saved.at(path), recomputed ? 0 : kept.at(path))
              << path << " of " << RecomputeConfig::Policy_Name(policy)
              << " every " << every;
          EXPECT_GT(kept.at(path), 0);
        }
      }
    }
  }
}

TEST(TransformerLmTest, NextTokenLogitsAreARowOfLogits) {
  Fixture fixture(Tiny(), {});
  const at::NoGradGuard no_grad;
  const at::Tensor all = fixture.model->Logits(fixture.ids);
  for (const int64_t length : {int64_t{1}, all.size(1) - 1, all.size(1)}) {
    const at::Tensor next = fixture.model->NextTokenLogits(fixture.ids, length);
    EXPECT_TRUE(at::allclose(next, all.select(1, length - 1), 1e-5, 1e-6))
        << length;
  }
}

}  // namespace
}  // namespace tessera
