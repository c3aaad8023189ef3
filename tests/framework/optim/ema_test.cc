#include "framework/optim/ema.h"

#include <ATen/ATen.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/optim/ema_math.h"
#include "framework/optim/optimizer.h"
#include "framework/optim/optimizer_config.h"
#include "gtest/gtest.h"
#include "tests/framework/optim/precision_set_up.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/weights.h"

namespace tessera {
namespace {

using testing::BitEqual;
using testing::ErrorBudget;
using testing::SetUpPrecision;

// Weights in every form of the policy, some of them Muon's; sizes that leave
// gaps in the flat buffers, and one of several thread blocks.
std::vector<ParameterBlockSpec> Blocks(at::ScalarType compute) {
  const auto weight = [](const char* name, std::vector<int64_t> shape) {
    return ParameterSpec{name, std::move(shape), Init::kLinear};
  };
  return {{"frozen", {weight("frozen", {9, 9})}, /*trainable=*/false},
          {"embedding", {weight("embedding", {11, 13})}, true, {at::kFloat}},
          {"tied", {weight("tied", {70, 50})}, true, {at::kFloat, compute}},
          {"head", {weight("head", {5, 13})}, true, {compute}},
          {.name = "qkv",
           .members = {weight("q", {7, 13}), weight("k", {3, 13})},
           .reads = {compute},
           .muon = true}};
}

struct Trainee {
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<Optimizer> optimizer;

  // `ema` as in EmaConfig.
  static Trainee Create(const std::string& precision, const std::string& ema,
                        at::Device device) {
    const auto [policy, options] =
        SetUpPrecision(precision, /*micro_batches=*/1, device);
    auto store =
        ParameterStore::Create(Blocks(options.weights.compute), options);
    EXPECT_TRUE(store.ok()) << store.status();
    OptimizerConfig config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        "adamw { lr: 1 weight_decay: 0.1 } muon {} ema { " + ema + " }",
        &config));
    auto optimizer = Optimizer::Create(AdamWOptionsOf(config.adamw()),
                                       ParameterGroupsOf(config.adamw()),
                                       MuonOptionsOf(config), **store, policy);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    const absl::Status started =
        (*optimizer)->StartEma(EmaOptionsOf(config.ema()));
    EXPECT_TRUE(started.ok()) << started;
    return {*std::move(store), *std::move(optimizer)};
  }

  void Step(int64_t step, bool skip = false) const {
    at::manual_seed(1000 + step);
    store->grad().copy_(at::randn({store->grad().numel()}));
    store->ZeroGradientGaps();
    const auto scalar = [&](double value, at::ScalarType dtype) {
      return at::full({1}, value, store->grad().options().dtype(dtype));
    };
    absl::Status status =
        optimizer->Prepare({.lr = scalar(1e-2, at::kFloat),
                            .grad_scale = scalar(1, at::kFloat),
                            .skip = scalar(skip ? 1 : 0, at::kBool)});
    const int64_t adamw = store->adamw_extent();
    for (const auto& [begin, end] : {std::pair{int64_t{0}, kBlockAlignment},
                                     {kBlockAlignment, adamw},
                                     {adamw, store->trainable_extent()}}) {
      status.Update(optimizer->Update(begin, end));
    }
    EXPECT_TRUE(status.ok()) << status;
  }

  void Exchange() const {
    const int64_t extent = store->trainable_extent();
    absl::Status status = optimizer->ema()->Exchange(0, kBlockAlignment);
    status.Update(optimizer->ema()->Exchange(kBlockAlignment, extent));
    EXPECT_TRUE(status.ok()) << status;
  }

  at::Tensor Average() const { return optimizer->ema()->average().cpu(); }
  // Those of trained parameters, where they are in Average().
  at::Tensor Weights() const {
    return WeightsOf(*store).narrow(0, 0, store->trainable_extent());
  }
  std::vector<at::Tensor> State() const {
    std::vector<at::Tensor> all = store->weights().Defined();
    all.push_back(optimizer->ema()->average());
    for (at::Tensor& tensor : all) tensor = tensor.cpu().clone();
    return all;
  }
};

void ExpectSame(const std::vector<at::Tensor>& a,
                const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(BitEqual(a[i], b[i])) << "buffer " << i;
  }
}

class EmaTest : public ::testing::TestWithParam<std::string> {
 protected:
  virtual at::Device device() const { return at::kCPU; }
  Trainee Create(const std::string& ema) const {
    return Trainee::Create(GetParam(), ema, device());
  }

  void ExpectAveragesTheWeights() const;
  void ExpectSkippedStepsChangeNothing() const;
  void ExpectExchangesBothWays() const;
};

void EmaTest::ExpectAveragesTheWeights() const {
  for (const auto& [ema, decay, warmup] :
       {std::tuple<const char*, double, bool>{"decay: 0.9", 0.9, false},
        {"decay: 0.3", 0.3, false},
        {"decay: 0.9 warmup: true", 0.9, true},
        {"", 0.999, false}}) {
    SCOPED_TRACE(ema);
    const Trainee ours = Create(ema);
    at::Tensor oracle = ours.Weights().to(at::kDouble);
    at::Tensor plain = ours.Weights().to(at::kFloat);
    EXPECT_TRUE(BitEqual(ours.Average(), plain));
    for (int64_t t = 1; t <= 100; ++t) {
      ours.Step(t);
      const double n = static_cast<double>(t);
      const double d = warmup ? std::min(decay, (1 + n) / (10 + n)) : decay;
      const at::Tensor weights = ours.Weights();
      oracle = d * oracle + (1 - d) * weights.to(at::kDouble);
      plain = d * plain + (1 - d) * weights.to(at::kFloat);
    }
    EXPECT_TRUE(
        ErrorBudget::AgainstBaseline(plain, oracle).Accepts(ours.Average()));
    EXPECT_GT((ours.Weights() - plain).abs().max().item<double>(), 1e-3);
  }
}

void EmaTest::ExpectSkippedStepsChangeNothing() const {
  const Trainee ours = Create("decay: 0.5");
  ours.Step(1);
  const std::vector<at::Tensor> before = ours.State();
  ours.Step(2, /*skip=*/true);
  ExpectSame(ours.State(), before);
  ours.Step(3);
  EXPECT_FALSE(ours.Average().equal(before.back()));
  // An update that was given up.
  ours.optimizer->Discard();
  const at::Tensor average = ours.Average().clone();
  ASSERT_TRUE(
      ours.optimizer->ema()->Update(0, ours.store->trainable_extent()).ok());
  EXPECT_TRUE(BitEqual(ours.Average(), average));
  ASSERT_TRUE(ours.optimizer->ema()->Restart().ok());
  EXPECT_TRUE(BitEqual(ours.Average(), ours.Weights().to(at::kFloat)));
}

// Ops read the average while both are exchanged.
void EmaTest::ExpectExchangesBothWays() const {
  const Trainee ours = Create("decay: 0.5");
  for (int64_t step = 0; step < 3; ++step) ours.Step(step);
  const std::vector<at::Tensor> before = ours.State();
  const at::Tensor average = ours.Average().clone();
  const at::Tensor weights = ours.Weights().clone();
  ours.Exchange();
  const at::Tensor read = ours.Weights();
  if (read.scalar_type() == at::kFloat) {
    EXPECT_TRUE(BitEqual(read, average));
    EXPECT_TRUE(BitEqual(ours.Average(), weights));
  } else {  // at most half a step of BF16 away
    EXPECT_TRUE((read.to(at::kFloat) - average)
                    .abs()
                    .le(average.abs() / 256)
                    .all()
                    .item<bool>());
  }
  for (const char* const name : {"embedding", "tied", "head", "qkv"}) {
    const Parameter& block = ours.store->Get(name);
    const ParameterStoreOptions& options = ours.store->options();
    const bool master = std::string(name) == "embedding";
    const at::Tensor& op_reads =
        block.As(master ? options.weights.master : options.weights.compute);
    const ParameterSlice* slice = nullptr;
    for (const ParameterSlice& s : ours.store->slices()) {
      if (s.name == (std::string(name) == "qkv" ? "q" : name)) slice = &s;
    }
    const at::Tensor expected = average.narrow(0, slice->offset, slice->numel);
    EXPECT_LE((op_reads.flatten().narrow(0, 0, slice->numel).cpu() - expected)
                  .abs()
                  .max()
                  .item<double>(),
              expected.abs().max().item<double>() / 256)
        << name;
  }
  ours.Exchange();
  ExpectSame(ours.State(), before);
}

// Beside a negative half, the bits of a zero are those of a NaN.
TEST(EmaMathTest, AZeroWeightInBFloat16IsRestored) {
  for (const float weight : {0.0f, -0.0f, 1.5f, -2.0f}) {
    for (const float average : {1.0001e-4f, 0.3f, -0.7f, 0.0f}) {
      const EmaElement given = {.param = weight, .average = average};
      const EmaElement exchanged = ExchangeEma<true>(given);
      EXPECT_NEAR(exchanged.param, average, 0x1p-8 * std::abs(average));
      const EmaElement restored = ExchangeEma<true>(exchanged);
      EXPECT_EQ(std::bit_cast<uint32_t>(restored.param),
                std::bit_cast<uint32_t>(weight));
      EXPECT_EQ(restored.average, average);
    }
  }
}

TEST_P(EmaTest, AveragesTheWeights) { ExpectAveragesTheWeights(); }
TEST_P(EmaTest, SkippedStepsChangeNothing) {
  ExpectSkippedStepsChangeNothing();
}
TEST_P(EmaTest, ExchangesBothWays) { ExpectExchangesBothWays(); }

const std::string kModes[] = {"FP32", "BF16", "FP16", "BF16_PURE"};
std::string NameOf(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}
INSTANTIATE_TEST_SUITE_P(Modes, EmaTest, ::testing::ValuesIn(kModes), NameOf);

class GpuEmaTest : public EmaTest {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }
  at::Device device() const override { return at::Device(at::kCUDA, 0); }
};

TEST_P(GpuEmaTest, AveragesTheWeights) { ExpectAveragesTheWeights(); }
TEST_P(GpuEmaTest, SkippedStepsChangeNothing) {
  ExpectSkippedStepsChangeNothing();
}
TEST_P(GpuEmaTest, ExchangesBothWays) { ExpectExchangesBothWays(); }

INSTANTIATE_TEST_SUITE_P(Modes, GpuEmaTest, ::testing::ValuesIn(kModes),
                         NameOf);

}  // namespace
}  // namespace tessera
