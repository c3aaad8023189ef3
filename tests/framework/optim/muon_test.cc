#include "framework/optim/muon.h"

#include <ATen/ATen.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/optim/muon_slices.h"
#include "framework/optim/optimizer.h"
#include "framework/optim/optimizer_config.h"
#include "gtest/gtest.h"
#include "tests/framework/optim/precision_set_up.h"
#include "tests/framework/optim/torch_muon_golden.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/weights.h"

namespace tessera {
namespace {

using testing::BitEqual;
using testing::ErrorBudget;
using testing::SetUpPrecision;

// Wide, tall and square matrices, two of the same shape, stacked ones that
// begin inside a chunk of AdamW, and parameters of AdamW between them. As in a
// model, ops read gains in FP32 and matrices in `compute`; `reads_both` also
// those of Muon in FP32.
std::vector<ParameterBlockSpec> Blocks(at::ScalarType compute,
                                       bool reads_both = false,
                                       bool row_moments = false) {
  const auto weight = [](const char* name, std::vector<int64_t> shape) {
    return ParameterSpec{name, std::move(shape), Init::kLinear};
  };
  std::vector<at::ScalarType> reads = {compute};
  if (reads_both) reads.push_back(at::kFloat);
  const auto muon = [&](const char* name, std::vector<ParameterSpec> members) {
    return ParameterBlockSpec{.name = name,
                              .members = std::move(members),
                              .reads = reads,
                              .muon = true,
                              .row_moments = row_moments};
  };
  return {
      {"frozen", {weight("frozen", {9, 9})}, /*trainable=*/false, {compute}},
      {"embedding", {weight("embedding", {11, 13})}, true, {at::kFloat}},
      muon("qkv", {weight("q.weight", {7, 13}), weight("k.weight", {3, 13})}),
      {"norm", {{"norm.gain", {13}, Init::kOnes}}, true, {at::kFloat}},
      muon("o", {weight("o.weight", {13, 7})}),
      muon("up", {weight("up.weight", {7, 13})}),
      muon("square", {weight("square.weight", {24, 24})})};
}

struct Mode {
  std::string precision = "FP32";
  int micro_batches = 1;
  bool reads_both = false;
  bool normuon = false;
};

std::string ModeName(const ::testing::TestParamInfo<Mode>& info) {
  return info.param.precision +
         (info.param.micro_batches > 1 ? "_Fp32Grad" : "") +
         (info.param.reads_both ? "_Shadow" : "") +
         (info.param.normuon ? "_NorMuon" : "");
}

// Values in [-0.5, 0.5), as in torch_muon.py.
void Fill(int64_t step, const std::vector<std::string>& names,
          const ParameterStore& store, const at::Tensor& flat) {
  uint32_t i = 1000003 * static_cast<uint32_t>(step + 1);
  for (const std::string& name : names) {
    for (const ParameterSlice& slice : store.slices()) {
      if (slice.name != name) continue;
      float* const values = flat.data_ptr<float>() + slice.offset;
      for (int64_t j = 0; j < slice.numel; ++j, ++i) {
        values[j] =
            static_cast<float>((i * 2654435761u >> 8) / 16777216.0) - 0.5f;
      }
    }
  }
}

// A store with its optimizer.
struct Trainee {
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<Optimizer> optimizer;
  at::ScalarType products = at::kFloat;

  static Trainee Create(const Mode& mode, const std::string& config,
                        at::Device device = at::kCPU,
                        const Sharding& sharding = {}) {
    auto [policy, options] =
        SetUpPrecision(mode.precision, mode.micro_batches, device);
    options.sharding = sharding;
    auto store = ParameterStore::Create(
        Blocks(options.weights.compute, mode.reads_both, mode.normuon),
        options);
    EXPECT_TRUE(store.ok()) << store.status();
    OptimizerConfig parsed;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(config, &parsed));
    auto optimizer = Optimizer::Create(AdamWOptionsOf(parsed.adamw()),
                                       ParameterGroupsOf(parsed.adamw()),
                                       MuonOptionsOf(parsed), **store, policy);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    return {*std::move(store), *std::move(optimizer), MuonDtype(policy)};
  }

  // Normally distributed gradients. On every device and in every mode they are
  // the same, up to rounding.
  void FillGradient(int64_t step) const {
    at::manual_seed(1000 + step);
    for (const ParameterSlice& slice : store->slices()) {
      if (!slice.trainable) continue;
      store->grad()
          .narrow(0, slice.offset, slice.numel)
          .copy_(at::randn({slice.numel}, at::kFloat));
    }
  }

  // With the gradient in the store.
  void Update(double lr, double grad_scale = 1, bool skip = false) const {
    const auto scalar = [&](double value, at::ScalarType dtype) {
      return at::full({1}, value, store->grad().options().dtype(dtype));
    };
    absl::Status status = optimizer->Prepare({scalar(lr, at::kFloat),
                                              scalar(grad_scale, at::kFloat),
                                              scalar(skip, at::kBool)});
    const Sharding& sharding = store->sharding();
    for (const ParameterSection& section : store->sections()) {
      if (!sharding.divides_optimizer()) break;
      const int64_t begin =
          sharding.PartBegin(section.begin, section.end, sharding.index);
      status.Update(
          optimizer->Update(begin, begin + section.size() / sharding.shards));
    }
    if (!sharding.divides_optimizer()) {
      const int64_t adamw = store->adamw_extent();
      status.Update(optimizer->Update(0, adamw));
      status.Update(optimizer->Update(adamw, store->trainable_extent()));
    }
    EXPECT_TRUE(status.ok()) << status;
  }

  void Step(int64_t step, double lr, double grad_scale = 1,
            bool skip = false) const {
    FillGradient(step);
    Update(lr, grad_scale, skip);
  }

  std::vector<at::Tensor> State() const {
    std::vector<at::Tensor> all = store->weights().Defined();
    all.insert(all.end(), {optimizer->exp_avg(), optimizer->exp_avg_sq(),
                           optimizer->step()});
    for (at::Tensor& tensor : all) tensor = tensor.cpu().clone();
    return all;
  }

  at::Tensor Matrix(const at::Tensor& flat, const ParameterSlice& slice) const {
    return flat.narrow(0, slice.offset, slice.numel).view(slice.shape).cpu();
  }
};

constexpr char kConfig[] =
    "adamw { lr: 1 weight_decay: 0.1 } muon { momentum: 0.9 }";

std::string ConfigOf(const Mode& mode) {
  return mode.normuon ? "adamw { lr: 1 weight_decay: 0.1 } "
                        "muon { momentum: 0.9 normuon_beta2: 0.8 }"
                      : kConfig;
}

// A matrix and its state; `row_moments` are undefined without NorMuon.
struct PlainMatrix {
  at::Tensor w, momentum, row_moments;

  PlainMatrix() = default;
  PlainMatrix(at::Tensor weights, bool normuon)
      : w(std::move(weights)), momentum(at::zeros_like(w)) {
    if (normuon) row_moments = at::zeros({w.size(0), 1}, w.options());
  }

  void Step(const at::Tensor& g, double lr, at::ScalarType dtype);
};

// torch.optim.Muon's step, with products in `dtype`, and that of NorMuon's
// paper.
void PlainMatrix::Step(const at::Tensor& g, double lr, at::ScalarType dtype) {
  momentum = 0.9 * momentum + (1 - 0.9) * g;
  at::Tensor x = ((1 - 0.9) * g + 0.9 * momentum).to(dtype);
  const bool tall = w.size(0) > w.size(1);
  if (tall) x = x.t();
  x = x / x.norm();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::mm(x, x.t());
    const at::Tensor b = at::addmm(a, a, a, -4.7750, 2.0315);
    x = at::addmm(x, b, x, 3.4445, 1);
  }
  if (tall) x = x.t();
  x = x.to(w.scalar_type());
  if (!row_moments.defined()) {
    const double ratio =
        0.2 * std::sqrt(static_cast<double>(std::max(w.size(0), w.size(1))));
    w = w - lr * 0.1 * w - lr * ratio * x;
    return;
  }
  row_moments = 0.8 * row_moments + (1 - 0.8) * x.square().mean(1, true);
  x = x / (row_moments.sqrt() + 1e-8);
  const double root = std::sqrt(static_cast<double>(w.numel()));
  w = w - lr * 0.1 * w - 0.2 * lr * root / x.norm() * x;
}

class MuonEquation : public ::testing::TestWithParam<Mode> {};

// The equations in FP64, one matrix at a time. Plain code with the same dtypes,
// products in BF16 instead of FP16, sets the budget.
TEST_P(MuonEquation, EqualsThePaperInFp64) {
  const bool normuon = GetParam().normuon;
  const Trainee ours = Trainee::Create(GetParam(), ConfigOf(GetParam()));
  struct Expected {
    PlainMatrix oracle, plain;
  };
  std::map<std::string, Expected> expected;
  at::Tensor weights = WeightsOf(*ours.store);
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (!slice.muon) continue;
    const at::Tensor w = ours.Matrix(weights, slice);
    expected[slice.name] = {PlainMatrix(w.to(at::kDouble), normuon),
                            PlainMatrix(w, normuon)};
  }
  ASSERT_EQ(expected.size(), 5u);
  for (int64_t step = 0; step < 4; ++step) {
    const double lr = 0.01 * static_cast<double>(step + 1);
    ours.Step(step, lr, /*grad_scale=*/0.25);
    for (const ParameterSlice& slice : ours.store->slices()) {
      if (!slice.muon) continue;
      Expected& e = expected[slice.name];
      const at::Tensor g =
          0.25 * ours.Matrix(ours.store->grad(), slice).to(at::kFloat);
      e.oracle.Step(g.to(at::kDouble), lr, at::kDouble);
      e.plain.Step(g, lr,
                   ours.products == at::kHalf ? at::kBFloat16 : ours.products);
    }
  }
  weights = WeightsOf(*ours.store);
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (!slice.muon) continue;
    const Expected& e = expected[slice.name];
    const auto expect = [&](const at::Tensor PlainMatrix::*of,
                            const at::Tensor& result) {
      EXPECT_TRUE(ErrorBudget::AgainstBaseline(e.plain.*of, e.oracle.*of)
                      .Accepts(result))
          << slice.name;
    };
    expect(&PlainMatrix::w, ours.Matrix(weights, slice));
    expect(&PlainMatrix::momentum,
           ours.Matrix(ours.optimizer->exp_avg(), slice));
    if (!normuon) continue;
    const int64_t rows = slice.shape[0];
    expect(&PlainMatrix::row_moments,
           ours.optimizer->exp_avg_sq()
               .narrow(0, slice.row_moments.value(), rows)
               .view({rows, 1}));
  }
}

INSTANTIATE_TEST_SUITE_P(, MuonEquation,
                         ::testing::Values(Mode{"FP32"}, Mode{"BF16"},
                                           Mode{"BF16", 1, true},
                                           Mode{"BF16", 2},
                                           Mode{"FP32", 1, false, true},
                                           Mode{"BF16", 1, false, true}),
                         ModeName);

// Repeats torch_muon.py. Both round every product to FP32, which the iteration
// amplifies up to 3.4^5 = 480 times in a direction of small singular values.
void ExpectTorchs(const std::string& config, const float* next,
                  const float* end) {
  const Trainee ours = Trainee::Create({"FP32"}, config);
  const std::vector<std::string> names = {"q.weight", "k.weight", "o.weight"};
  const at::Tensor initial = WeightsOf(*ours.store);
  Fill(-1, names, *ours.store, initial);
  SetWeights(initial, ours.store.get());
  for (int64_t step = 0; step < 5; ++step) {
    Fill(step, names, *ours.store, ours.store->grad());
    ours.Update(std::ldexp(static_cast<double>(1 + step), -5));
  }
  const at::Tensor weights = WeightsOf(*ours.store);
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (slice.name.size() != 8) continue;  // q, k, o
    const at::Tensor expected =
        at::from_blob(const_cast<float*>(next), slice.shape);
    next += slice.numel;
    EXPECT_LT(
        (ours.Matrix(weights, slice) - expected).abs().max().item<float>(),
        1e-5)
        << slice.name;
  }
  EXPECT_EQ(next, end);
}

TEST(Muon, EqualsTorchsOriginal) {
  ExpectTorchs(
      "adamw { lr: 0.5 weight_decay: 0.1 } muon { lr: 0.5 momentum: 0.9 "
      "adjust_lr: ORIGINAL }",
      std::begin(kTorchMuonOriginal), std::end(kTorchMuonOriginal));
}

TEST(Muon, EqualsTorchsThatMatchesAdamW) {
  ExpectTorchs(
      "adamw { lr: 0.5 weight_decay: 0.1 } muon { momentum: 0.9 nesterov: "
      "false "
      "}",
      std::begin(kTorchMuonMatchRms), std::end(kTorchMuonMatchRms));
}

// Muon's own rate scales update and decay; a group's do, too.
TEST(Muon, HasItsRateAndTheGroupsOfAdamW) {
  const std::string groups =
      " groups { name: 'matrices' patterns: '*.weight' lr_multiplier: 0.5 "
      "          weight_decay: 0.3 }"
      " groups { name: 'others' patterns: 'embedding' patterns: 'norm.*' } ";
  const Trainee grouped = Trainee::Create(
      {"FP32"}, "adamw { lr: 0.1 " + groups + "} muon { lr: 0.4 }");
  const Trainee plain =
      Trainee::Create({"FP32"}, "adamw { lr: 1 weight_decay: 0.3 } muon {}");
  for (int64_t step = 0; step < 3; ++step) {
    grouped.Step(step, 0.015625);  // of AdamW; 4 * 0.5 times as much for Muon
    plain.Step(step, 0.03125);
  }
  const at::Tensor a = WeightsOf(*grouped.store), b = WeightsOf(*plain.store);
  for (const ParameterSlice& slice : plain.store->slices()) {
    if (!slice.muon) continue;
    EXPECT_TRUE(BitEqual(grouped.Matrix(a, slice), plain.Matrix(b, slice)))
        << slice.name;
  }
}

// The same step without decay shows in which direction X moves a weight.
TEST(Muon, CautiousDecayIsOnlyOfWeightsThatDoNotGrow) {
  const Trainee cautious = Trainee::Create(
      {"FP32"},
      "adamw { lr: 1 weight_decay: 0.5 cautious_weight_decay: true } muon {}");
  const Trainee plain =
      Trainee::Create({"FP32"}, "adamw { lr: 1 weight_decay: 0 } muon {}");
  const at::Tensor before = WeightsOf(*plain.store);
  cautious.Step(0, 0.1);
  plain.Step(0, 0.1);
  const at::Tensor moved = WeightsOf(*plain.store) - before;
  const at::Tensor decayed =
      WeightsOf(*plain.store) - WeightsOf(*cautious.store);
  int64_t shrink = 0, grow = 0;
  for (const ParameterSlice& slice : plain.store->slices()) {
    if (!slice.muon) continue;
    const at::Tensor w = plain.Matrix(before, slice);
    const at::Tensor grows = (plain.Matrix(moved, slice) * w).gt(0);
    EXPECT_TRUE(at::allclose(plain.Matrix(decayed, slice),
                             0.05 * w * grows.logical_not(), 1e-5, 1e-6))
        << slice.name;
    grow += grows.sum().item<int64_t>();
    shrink += grows.logical_not().sum().item<int64_t>();
  }
  EXPECT_GT(grow, 300);
  EXPECT_GT(shrink, 300);
}

// AdamW's own part has the bits that it has without Muon.
TEST(Muon, LeavesTheOthersToAdamW) {
  const Trainee ours = Trainee::Create({"FP32"}, kConfig);
  EXPECT_EQ(ours.optimizer->exp_avg_sq().numel(), ours.store->adamw_extent());
  EXPECT_EQ(ours.optimizer->exp_avg().numel(), ours.store->trainable_extent());
  std::vector<ParameterBlockSpec> blocks = Blocks(at::kFloat);
  for (ParameterBlockSpec& block : blocks) block.muon = false;
  const auto store = ParameterStore::Create(blocks, {}).value();
  AdamWOptions options;
  options.groups[0].weight_decay = 0.1f;
  const auto adamw =
      AdamW::Create(options, {}, *store, PrecisionPolicy()).value();
  for (int64_t step = 0; step < 3; ++step) {
    ours.Step(step, 0.01);
    for (const ParameterSlice& slice : store->slices()) {
      for (const ParameterSlice& other : ours.store->slices()) {
        if (slice.name != other.name || !slice.trainable) continue;
        store->grad()
            .narrow(0, slice.offset, slice.numel)
            .copy_(ours.store->grad().narrow(0, other.offset, other.numel));
      }
    }
    ASSERT_TRUE(adamw->Step({at::full({1}, 0.01f)}).ok());
  }
  const at::Tensor a = WeightsOf(*ours.store), b = WeightsOf(*store);
  for (const ParameterSlice& slice : store->slices()) {
    for (const ParameterSlice& other : ours.store->slices()) {
      if (slice.name != other.name || !slice.trainable) continue;
      EXPECT_EQ(BitEqual(ours.Matrix(a, other), ours.Matrix(b, slice)),
                !other.muon)
          << slice.name;
    }
  }
}

class MuonInMode : public ::testing::TestWithParam<Mode> {};

TEST_P(MuonInMode, ASkippedStepChangesNoBit) {
  const Trainee ours = Trainee::Create(GetParam(), ConfigOf(GetParam()));
  ours.Step(0, 1e-2);
  const std::vector<at::Tensor> before = ours.State();
  ours.Step(1, 1e-2, std::numeric_limits<double>::quiet_NaN(), /*skip=*/true);
  const std::vector<at::Tensor> after = ours.State();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(BitEqual(before[i], after[i])) << "tensor " << i;
  }
}

// What products read is the master rounded to their dtype.
TEST_P(MuonInMode, ProductsReadTheRoundedMaster) {
  const Trainee ours = Trainee::Create(GetParam(), ConfigOf(GetParam()));
  ours.Step(0, 1e-2);
  ours.Step(1, 1e-2);
  const at::Tensor masters = WeightsOf(*ours.store);
  const at::ScalarType compute = ours.store->options().weights.compute;
  for (const char* const name : {"qkv", "o", "square"}) {
    const Parameter& block = ours.store->Get(name);
    for (const ParameterSlice& slice : ours.store->slices()) {
      if (!slice.muon || slice.block_offset != slice.offset ||
          slice.name[0] != name[0]) {
        continue;
      }
      const at::Tensor read =
          block.As(compute).flatten().narrow(0, 0, slice.numel);
      const at::Tensor master = masters.narrow(0, slice.offset, slice.numel);
      // Halves round ties away from zero; no master here is a tie.
      EXPECT_TRUE(BitEqual(read, master.to(compute))) << slice.name;
    }
  }
}

TEST_P(MuonInMode, DoesNotChangeFrozenParametersAndGaps) {
  const Trainee ours = Trainee::Create(GetParam(), ConfigOf(GetParam()));
  const at::Tensor before = WeightsOf(*ours.store);
  ours.Step(0, 1e-2);
  at::Tensor untouched = at::ones({before.numel()}, at::kBool);
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (!slice.trainable) continue;
    untouched.narrow(0, slice.offset, slice.numel).fill_(false);
  }
  const at::Tensor after = WeightsOf(*ours.store);
  EXPECT_TRUE(BitEqual(after.masked_select(untouched),
                       before.masked_select(untouched)));
  const at::Tensor gaps =
      untouched.narrow(0, 0, ours.store->trainable_extent());
  EXPECT_EQ(ours.optimizer->exp_avg()
                .masked_select(gaps)
                .count_nonzero()
                .item<int64_t>(),
            0);
}

// Expects the weights and moments of a matrix, of which `part` has all, to be
// those of `whole`.
void ExpectSameMatrix(const Trainee& part, const Trainee& whole,
                      const ParameterSlice& slice) {
  const ParameterStore& store = *part.store;
  const auto expect = [&](const at::Tensor& a, int64_t place,
                          const at::Tensor& b, int64_t offset, int64_t numel) {
    if (!a.defined()) return;
    EXPECT_TRUE(BitEqual(a.narrow(0, place, numel).cpu(),
                         b.narrow(0, offset, numel).cpu()))
        << slice.name;
  };
  const HeldRange held = store.HeldOf(store.divisions().moments, slice);
  expect(part.optimizer->exp_avg(), held.place, whole.optimizer->exp_avg(),
         slice.offset, slice.numel);
  if (slice.row_moments.has_value()) {
    expect(part.optimizer->exp_avg_sq(), store.HeldRowsOf(slice).place,
           whole.optimizer->exp_avg_sq(), *slice.row_moments, slice.shape[0]);
  }
  const WeightBuffers &a = store.weights(), &b = whole.store->weights();
  const int64_t offset = slice.weights.offset;
  if (!slice.weights.split) {
    expect(a.master, offset, b.master, offset, slice.numel);
    const int64_t shadow = slice.weights.shadow.value_or(0);
    expect(a.shadow, shadow, b.shadow, shadow, slice.numel);
    return;
  }
  expect(a.high, offset, b.high, offset, slice.numel);
  const ParameterSection& section = store.SectionOf(slice.offset);
  const int64_t first = section.weights.offset;
  const int64_t shift =
      store.divisions().low.Shift(first, first + section.size());
  expect(a.low, offset - shift, b.low, offset, slice.numel);
}

// Three ranks that divide the state update each matrix as one that does not.
void ExpectRanksUpdateTheirMatrices(const Mode& mode, at::Device device) {
  constexpr int kRanks = 3, kSteps = 3;
  const auto trained = [&](const Sharding& sharding) {
    Trainee trainee = Trainee::Create(mode, ConfigOf(mode), device, sharding);
    for (int step = 0; step < kSteps; ++step) trainee.Step(step, 1e-2);
    return trainee;
  };
  const Trainee whole = trained({.shards = kRanks});
  int matrices = 0;
  for (int index = 0; index < kRanks; ++index) {
    const Trainee part = trained({.shards = kRanks, .index = index, .zero = 1});
    for (const ParameterSlice& slice : part.store->slices()) {
      if (!slice.muon ||
          part.store->HeldOf(part.store->divisions().moments, slice).numel ==
              0) {
        continue;
      }
      ExpectSameMatrix(part, whole, slice);
      ++matrices;
    }
  }
  EXPECT_EQ(matrices, 5);
}

TEST_P(MuonInMode, RanksUpdateTheirMatricesBitForBit) {
  ExpectRanksUpdateTheirMatrices(GetParam(), at::kCPU);
}

const Mode kModes[] = {{"FP32"},
                       {"BF16"},
                       {"BF16", 2},
                       {"BF16", 1, true},
                       {"FP16"},
                       {"FP16", 2},
                       {"BF16_PURE"},
                       {"BF16_PURE", 2},
                       {"FP32", 1, false, true},
                       {"BF16", 1, false, true},
                       {"BF16_PURE", 1, false, true}};
INSTANTIATE_TEST_SUITE_P(, MuonInMode, ::testing::ValuesIn(kModes), ModeName);

// The form in which weights are kept does not change them.
TEST(Muon, SplitWeightsEqualWholeOnesBitForBit) {
  const Trainee split = Trainee::Create({"BF16"}, kConfig);
  const Trainee whole = Trainee::Create({"BF16", 1, true}, kConfig);
  ASSERT_TRUE(split.store->weights().low.defined());
  for (int64_t step = 0; step < 3; ++step) {
    split.Step(step, 1e-2);
    whole.Step(step, 1e-2);
  }
  const at::Tensor a = WeightsOf(*split.store), b = WeightsOf(*whole.store);
  const int64_t trained = split.store->trainable_extent();
  EXPECT_TRUE(BitEqual(a.narrow(0, 0, trained), b.narrow(0, 0, trained)));
}

// Zero gradients have no direction.
TEST(Muon, AZeroMomentumLeavesOnlyTheDecay) {
  const Trainee ours = Trainee::Create({"FP32"}, kConfig);
  const at::Tensor before = WeightsOf(*ours.store);
  ours.store->grad().zero_();
  ours.Update(0.5);
  const at::Tensor after = WeightsOf(*ours.store);
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (!slice.muon) continue;
    EXPECT_TRUE(at::allclose(ours.Matrix(after, slice),
                             0.95 * ours.Matrix(before, slice)))
        << slice.name;
  }
}

// Slices and batches of a model of `layers`, whose stores stack two matrices.
std::vector<MuonSlice> SlicesOf(int layers, int64_t width,
                                ParameterLayout* layout, int shards = 1) {
  std::vector<ParameterBlockSpec> blocks;
  blocks.push_back({.name = "embedding", .members = {{"e", {10, width}}}});
  for (int i = 0; i < layers; ++i) {
    const std::string name = std::to_string(i);
    blocks.push_back({.name = "w13" + name,
                      .members = {{"w1" + name, {2 * width, width}},
                                  {"w3" + name, {2 * width, width}}},
                      .muon = true});
    blocks.push_back({.name = "w2" + name,
                      .members = {{"w2" + name, {width, 2 * width}}},
                      .muon = true});
  }
  *layout = PlaceParameters(blocks, {}, {.shards = shards}).value();
  return MuonSlices(layout->slices, layout->sections, shards);
}

TEST(MuonSlices, ABatchHasTheMatricesOfAllLayers) {
  ParameterLayout layout;
  const std::vector<MuonSlice> slices = SlicesOf(3, 16, &layout);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].begin, layout.adamw_extent);
  EXPECT_EQ(slices[0].end, layout.trainable_extent);
  ASSERT_EQ(slices[0].batches.size(), 2u);
  EXPECT_EQ(slices[0].batches[0].count(), 6);
  EXPECT_EQ(slices[0].batches[0].rows, 32);
  EXPECT_EQ(slices[0].batches[1].count(), 3);
  // X, its successor, the small matrices and the norms of six matrices.
  EXPECT_EQ(MuonWorkspaceBytes(slices, at::kHalf),
            2 * 6 * 512 * 2 + 4 * 6 * 256 * 2 + 256);
  EXPECT_EQ(MuonWorkspaceBytes(slices, at::kFloat),
            2 * 6 * 512 * 4 + 2 * 6 * 256 * 4 + 256);
}

TEST(MuonSlices, EndWithTheBlockThatMakesThemLargeEnough) {
  ParameterLayout layout;
  // A block of stacked matrices has 33.9 M elements, w2 has 17.0 M.
  const std::vector<MuonSlice> slices = SlicesOf(2, 2912, &layout);
  ASSERT_EQ(slices.size(), 3u);
  for (size_t s = 0; s + 1 < slices.size(); ++s) {
    EXPECT_EQ(slices[s].end, slices[s + 1].begin);
  }
  EXPECT_EQ(slices[0].batches[0].count(), 2);
  EXPECT_EQ(slices[1].batches.size(), 2u);
  EXPECT_EQ(slices[2].batches[0].count(), 1);
  EXPECT_EQ(slices[2].end, layout.trainable_extent);
}

// Three ranks have two matrices each of the two layers.
TEST(MuonSlices, ABatchHasTheMatricesOfOneRank) {
  ParameterLayout layout;
  const std::vector<MuonSlice> slices = SlicesOf(2, 16, &layout, /*shards=*/3);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].begin, layout.adamw_extent);
  EXPECT_EQ(slices[0].end, layout.trainable_extent);
  int64_t matrices = 0;
  for (const MuonBatch& batch : slices[0].batches) {
    for (const ParameterSlice* const matrix : batch.matrices) {
      const int64_t part = (slices[0].end - slices[0].begin) / 3;
      EXPECT_EQ((matrix->offset - slices[0].begin) / part, batch.part);
      ++matrices;
    }
  }
  EXPECT_EQ(matrices, 6);
}

class GpuMuon : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }
};

TEST_P(GpuMuon, EqualsTheCpu) {
  const Trainee cpu = Trainee::Create(GetParam(), ConfigOf(GetParam()));
  const Trainee gpu = Trainee::Create(GetParam(), ConfigOf(GetParam()),
                                      at::Device(at::kCUDA, 0));
  for (int64_t step = 0; step < 3; ++step) {
    cpu.Step(step, 1e-2, /*grad_scale=*/0.5);
    gpu.Step(step, 1e-2, /*grad_scale=*/0.5);
  }
  // The iteration amplifies a rounding of small singular values at most 500
  // times; an update is 3 % of a weight.
  const double bound = cpu.products == at::kFloat ? 1e-4 : 1e-2;
  const at::Tensor a = WeightsOf(*gpu.store), b = WeightsOf(*cpu.store);
  for (const ParameterSlice& slice : cpu.store->slices()) {
    const at::Tensor x = gpu.Matrix(a, slice), y = cpu.Matrix(b, slice);
    EXPECT_LT(((x - y).norm() / y.norm()).item<double>(), bound) << slice.name;
  }
}

TEST_P(GpuMuon, ASkippedStepChangesNoBit) {
  const Trainee gpu = Trainee::Create(GetParam(), ConfigOf(GetParam()),
                                      at::Device(at::kCUDA, 0));
  gpu.Step(0, 1e-2);
  const std::vector<at::Tensor> before = gpu.State();
  gpu.Step(1, 1e-2, std::numeric_limits<double>::quiet_NaN(), /*skip=*/true);
  const std::vector<at::Tensor> after = gpu.State();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(BitEqual(before[i], after[i])) << "tensor " << i;
  }
}

TEST_P(GpuMuon, RanksUpdateTheirMatricesBitForBit) {
  ExpectRanksUpdateTheirMatrices(GetParam(), at::Device(at::kCUDA, 0));
}

INSTANTIATE_TEST_SUITE_P(, GpuMuon, ::testing::ValuesIn(kModes), ModeName);

}  // namespace
}  // namespace tessera
