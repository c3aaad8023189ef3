#include "framework/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/optim/adamw_update.h"
#include "framework/optim/optimizer_config.h"
#include "framework/precision/precision_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/optim/precision_set_up.h"
#include "tests/framework/optim/torch_adamw_golden.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/weights.h"

namespace tessera {
namespace {

using testing::BitEqual;
using ::testing::HasSubstr;
using testing::SetUpPrecision;

absl::StatusOr<std::unique_ptr<AdamW>> CreateAdamW(
    const std::string& text, ParameterStore& store,
    const PrecisionPolicy& policy) {
  AdamWConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return AdamW::Create(AdamWOptionsOf(config), ParameterGroupsOf(config), store,
                       policy);
}

// Odd sizes, and two members of a block that share a chunk. The CPU tests stay
// below the size at which LibTorch uses several threads. As in a model, ops
// read gains in FP32 and other blocks in `compute`; one block is read in both.
std::vector<ParameterBlockSpec> OddBlocks(int64_t ffn_rows = 65,
                                          at::ScalarType compute = at::kFloat) {
  const auto weight = [](const char* name, std::vector<int64_t> shape) {
    return ParameterSpec{name, std::move(shape), Init::kLinear};
  };
  return {
      {"frozen", {weight("frozen", {9, 9})}, /*trainable=*/false, {compute}},
      {"qkv",
       {weight("q.weight", {7, 13}), weight("k.weight", {3, 13})},
       /*trainable=*/true,
       {compute}},
      {"norm", {{"norm.gain", {13}, Init::kOnes}}, true, {at::kFloat}},
      {"one", {{"one.gain", {1}, Init::kOnes}}, true, {at::kFloat, compute}},
      {"ffn", {weight("ffn.weight", {ffn_rows, 129})}, true, {compute}}};
}

struct Mode {
  std::string precision;
  int micro_batches = 1;
  bool split = true;  // false: ops might read every block in FP32
};

// A store with its optimizer.
struct Trainee {
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<AdamW> adamw;

  static Trainee Create(const Mode& mode, const std::string& config,
                        at::Device device = at::kCPU, int64_t ffn_rows = 65) {
    const auto [policy, options] =
        SetUpPrecision(mode.precision, mode.micro_batches, device);
    std::vector<ParameterBlockSpec> blocks =
        OddBlocks(ffn_rows, options.weights.compute);
    for (ParameterBlockSpec& block : blocks) {
      if (!mode.split || options.weights.master != at::kFloat) {
        block.reads.clear();
      }
    }
    auto store = ParameterStore::Create(blocks, options);
    EXPECT_TRUE(store.ok()) << store.status();
    auto adamw = CreateAdamW(config, **store, policy);
    EXPECT_TRUE(adamw.ok()) << adamw.status();
    return {*std::move(store), *std::move(adamw)};
  }

  at::Tensor Scalar(double value) const {
    return at::full({1}, value, store->grad().options().dtype(at::kFloat));
  }

  // The same values for every device and mode, rounded; zero in the gaps.
  void FillGradient(int64_t step) const {
    at::manual_seed(1000 + step);
    for (const ParameterSlice& slice : store->slices()) {
      if (!slice.trainable) continue;
      store->grad()
          .narrow(0, slice.offset, slice.numel)
          .copy_(at::randn({slice.numel}, at::kFloat) *
                 (slice.name == "norm.gain" ? 1e-4 : 1.0));
    }
  }

  void Step(int64_t step, double lr, double grad_scale = 1,
            bool skip = false) const {
    FillGradient(step);
    const at::Tensor flag =
        at::full({1}, skip, store->grad().options().dtype(at::kBool));
    const absl::Status status =
        adamw->Step({Scalar(lr), Scalar(grad_scale), flag});
    EXPECT_TRUE(status.ok()) << status;
  }

  at::Tensor Weights() const {
    return WeightsOf(*store).narrow(0, 0, store->trainable_extent());
  }
};

// The largest |a - b| / |b| (L2 norm) over the parameters.
double WorstRelativeError(const ParameterStore& store, const at::Tensor& a,
                          const at::Tensor& b) {
  double worst = 0;
  for (const ParameterSlice& slice : store.slices()) {
    if (!slice.trainable) continue;
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, slice.offset, slice.numel).cpu().to(at::kDouble);
    };
    const at::Tensor x = part(a), y = part(b);
    const double error = ((x - y).norm() / y.norm()).item<double>();
    EXPECT_TRUE(std::isfinite(error)) << slice.name;
    worst = std::max(worst, error);
  }
  return worst;
}

constexpr char kHyper[] =
    "lr: 1 beta1: 0.9 beta2: 0.95 eps: 1e-8 "
    "weight_decay: 0.1";

double Rate(int64_t step) { return 1e-3 * (1 + std::sin(0.1 * step)); }

TEST(AdamW, EqualsLibTorchsOver100Steps) {
  const Trainee ours = Trainee::Create({"FP32"}, kHyper);
  at::Tensor weights = ours.Weights();
  at::Tensor exp_avg = at::zeros_like(weights);
  at::Tensor exp_avg_sq = at::zeros_like(weights);
  const at::Tensor count = at::zeros({}, at::kFloat);
  for (int64_t step = 0; step < 100; ++step) {
    ours.Step(step, Rate(step));
    count.add_(1);
    at::_fused_adamw_({weights}, {ours.store->grad()}, {exp_avg}, {exp_avg_sq},
                      {}, {count}, Rate(step), 0.9, 0.95, 0.1, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  EXPECT_LT(WorstRelativeError(*ours.store, ours.Weights(), weights), 1e-6);
  EXPECT_LT(WorstRelativeError(*ours.store, ours.adamw->exp_avg(), exp_avg),
            1e-6);
  EXPECT_LT(
      WorstRelativeError(*ours.store, ours.adamw->exp_avg_sq(), exp_avg_sq),
      1e-6);
  EXPECT_EQ(ours.adamw->step().item<int64_t>(), 100);
}

// Repeats torch_adamw.py, which uses Python's torch.optim.AdamW: two groups,
// and a rate that changes with the step.
TEST(AdamW, EqualsPythonsOver100Steps) {
  const Trainee ours = Trainee::Create(
      {"FP32"},
      std::string(kHyper) +
          " groups { name: 'matrices' patterns: '*.weight' }"
          " groups { name: 'gains' patterns: '*.gain' weight_decay: 0 "
          "          lr_multiplier: 0.5 }",
      at::kCPU, /*ffn_rows=*/1);
  // Fills the trainable parameters in the order of their declaration.
  const auto fill = [&](int64_t step, const at::Tensor& flat) {
    uint32_t i = 1000003 * static_cast<uint32_t>(step + 1);
    for (const ParameterSlice& slice : ours.store->slices()) {
      if (!slice.trainable) continue;
      float* const values = flat.data_ptr<float>() + slice.offset;
      for (int64_t j = 0; j < slice.numel; ++j, ++i) {
        values[j] =
            static_cast<float>((i * 2654435761u >> 8) / 16777216.0) - 0.5f;
      }
    }
  };
  const at::Tensor initial = WeightsOf(*ours.store);
  fill(-1, initial);
  SetWeights(initial, ours.store.get());
  for (int64_t step = 0; step < 100; ++step) {
    fill(step, ours.store->grad());
    const double lr = std::ldexp(1 + step % 7, -10);
    const absl::Status status = ours.adamw->Step(
        {ours.Scalar(lr), ours.Scalar(1), at::zeros({1}, at::kBool)});
    ASSERT_TRUE(status.ok()) << status;
  }
  at::Tensor expected = ours.Weights();
  const float* next = kTorchAdamW;
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (!slice.trainable) continue;
    std::copy_n(next, slice.numel, expected.data_ptr<float>() + slice.offset);
    next += slice.numel;
  }
  ASSERT_EQ(next, std::end(kTorchAdamW));
  EXPECT_LT(WorstRelativeError(*ours.store, ours.Weights(), expected), 1e-6);
}

// The paper's equations in FP64, with explicit bias-corrected moments.
class AdamWEquation
    : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(AdamWEquation, EqualsThePaperInFp64Over100Steps) {
  const auto& [precision, cautious] = GetParam();
  const Trainee ours = Trainee::Create(
      {precision},
      std::string(kHyper) + (cautious ? " cautious_weight_decay: true" : ""));
  at::Tensor theta = ours.Weights().to(at::kDouble);
  at::Tensor m = at::zeros_like(theta), v = at::zeros_like(theta);
  for (int64_t step = 0; step < 100; ++step) {
    const double lr = Rate(step);
    ours.Step(step, lr, /*grad_scale=*/0.25);
    const at::Tensor g = 0.25 * ours.store->grad().to(at::kDouble);
    m = 0.9 * m + (1 - 0.9) * g;
    v = 0.95 * v + (1 - 0.95) * g * g;
    const at::Tensor m_hat = m / (1 - std::pow(0.9, step + 1));
    const at::Tensor v_hat = v / (1 - std::pow(0.95, step + 1));
    const at::Tensor decays =
        cautious ? (m * theta).ge(0) : at::ones_like(m, at::kBool);
    theta =
        theta - lr * 0.1 * decays * theta - lr * m_hat / (v_hat.sqrt() + 1e-8);
  }
  EXPECT_LT(WorstRelativeError(*ours.store, ours.Weights(), theta), 1e-6);
  EXPECT_LT(WorstRelativeError(*ours.store, ours.adamw->exp_avg(), m), 1e-6);
  EXPECT_LT(WorstRelativeError(*ours.store, ours.adamw->exp_avg_sq(), v), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(, AdamWEquation,
                         ::testing::Combine(::testing::Values("FP32", "BF16"),
                                            ::testing::Bool()));

// The form in which weights are kept does not change their FP32 values.
void ExpectSplitWeightsEqualWholeOnes(at::Device device, int64_t ffn_rows) {
  for (const int micro_batches : {1, 2}) {
    const Trainee split =
        Trainee::Create({"BF16", micro_batches}, kHyper, device, ffn_rows);
    const Trainee whole = Trainee::Create({"BF16", micro_batches, false},
                                          kHyper, device, ffn_rows);
    ASSERT_TRUE(split.store->weights().low.defined());
    ASSERT_FALSE(whole.store->weights().low.defined());
    for (int64_t step = 0; step < 100; ++step) {
      split.Step(step, Rate(step), /*grad_scale=*/0.5);
      whole.Step(step, Rate(step), /*grad_scale=*/0.5);
    }
    EXPECT_TRUE(BitEqual(WeightsOf(*split.store), WeightsOf(*whole.store)));
    EXPECT_TRUE(BitEqual(split.adamw->exp_avg(), whole.adamw->exp_avg()));
    EXPECT_TRUE(BitEqual(split.adamw->exp_avg_sq(), whole.adamw->exp_avg_sq()));
  }
}

TEST(AdamW, SplitWeightsEqualWholeOnesBitForBit) {
  ExpectSplitWeightsEqualWholeOnes(at::kCPU, 65);
}

TEST(GpuAdamWSplit, EqualsWholeWeightsBitForBit) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectSplitWeightsEqualWholeOnes(at::Device(at::kCUDA, 0), 1001);
}

// Constants, which the compiler does not let overflow. 8.6 G and 17 G weights
// in FP32, and as many as 31 bits count.
TEST(AdamW, TheKernelCountsVectorsOf17GWeights) {
  constexpr uint32_t kVectors = 32;
  constexpr int32_t kHalf = 1 << 26, kMost = (1 << 27) - 1;  // chunks
  static_assert(ShiftedVector(31, 0, kVectors) == 31);
  static_assert(ShiftedVector(31, kHalf - 1, kVectors) == (1u << 31) - 1);
  static_assert(ShiftedVector(31, kHalf, kVectors) == (1u << 31) + 31);
  static_assert(ShiftedVector(31, kMost, kVectors) == ~0u);
  static_assert(ShiftedVector(~0u, -kMost, kVectors) == 31);
  static_assert(ShiftedVector(~0u, -kHalf - 1, kVectors) == (1u << 31) - 33);
  for (const int64_t shift : {-kMost, -kHalf - 1, -1, 1, kHalf + 1, kMost}) {
    const uint32_t i = shift < 0 ? ~0u : 5;
    EXPECT_EQ(ShiftedVector(i, static_cast<int32_t>(shift), kVectors),
              i + shift * int64_t{kVectors});
  }
}

TEST(AdamW, GroupsHaveTheirOwnDecayAndRate) {
  const Trainee grouped = Trainee::Create(
      {"FP32"}, std::string(kHyper) +
                    " groups { name: 'matrices' patterns: '*.weight' }"
                    " groups { name: 'gains' patterns: 'norm.*' "
                    "          patterns: 'one.*' weight_decay: 0.3 "
                    "          lr_multiplier: 0.5 }");
  const Trainee matrices = Trainee::Create({"FP32"}, kHyper);
  const Trainee gains = Trainee::Create(
      {"FP32"}, "lr: 1 beta1: 0.9 beta2: 0.95 eps: 1e-8 weight_decay: 0.3");
  for (int64_t step = 0; step < 10; ++step) {
    grouped.Step(step, Rate(step));
    matrices.Step(step, Rate(step));
    gains.Step(step, 0.5 * Rate(step));
  }
  for (const ParameterSlice& slice : grouped.store->slices()) {
    const bool gain = slice.name.ends_with(".gain");
    const auto part = [&](const Trainee& trainee) {
      return WeightsOf(*trainee.store).narrow(0, slice.offset, slice.numel);
    };
    EXPECT_TRUE(BitEqual(part(grouped), part(gain ? gains : matrices)))
        << slice.name;
  }
  EXPECT_FALSE(BitEqual(matrices.Weights(), gains.Weights()));
}

// More chunks than one thread processes at a time.
TEST(AdamW, GroupsAreTheSameOnAnyNumberOfThreads) {
  const auto weights_with = [](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const Trainee trainee = Trainee::Create(
        {"FP32"},
        std::string(kHyper) +
            " groups { name: 'matrices' patterns: '*.weight' }"
            " groups { name: 'gains' patterns: '*.gain' lr_multiplier: 0.5 }",
        at::kCPU, /*ffn_rows=*/1000);
    for (int64_t step = 0; step < 2; ++step) trainee.Step(step, 1e-2);
    at::set_num_threads(before);
    return trainee.Weights();
  };
  EXPECT_TRUE(BitEqual(weights_with(1), weights_with(3)));
}

const Mode kModes[] = {{"FP32"},    {"BF16"},      {"BF16", 2},     {"FP16"},
                       {"FP16", 2}, {"BF16_PURE"}, {"BF16_PURE", 2}};

std::string ModeName(const ::testing::TestParamInfo<Mode>& info) {
  return info.param.precision +
         (info.param.micro_batches > 1 ? "_Fp32Grad" : "");
}

// What products read: the master rounded to the compute dtype.
void ExpectRounded(const ParameterStore& store) {
  const at::ScalarType compute = store.options().weights.compute;
  if (compute == store.options().weights.master) return;
  const at::Tensor all = WeightsOf(store);
  int blocks = 0;
  for (const ParameterSlice& slice : store.slices()) {
    const WeightPlace& place = slice.weights;
    const at::Tensor master = all.narrow(0, slice.offset, slice.numel);
    if (place.split) {
      // Ties round away from zero.
      const at::Tensor high =
          master.view(at::kInt).add(0x8000).bitwise_right_shift(16).to(
              at::kShort);
      EXPECT_TRUE(BitEqual(store.weights()
                               .high.narrow(0, place.offset, slice.numel)
                               .cpu()
                               .view(at::kShort),
                           high))
          << slice.name;
    } else if (place.shadow.has_value()) {
      EXPECT_TRUE(BitEqual(
          store.weights().shadow.narrow(0, *place.shadow, slice.numel).cpu(),
          master.to(compute)))
          << slice.name;
    }
    blocks += place.split || place.shadow.has_value();
  }
  EXPECT_GE(blocks, 4);
}

class AdamWInMode : public ::testing::TestWithParam<Mode> {};

TEST_P(AdamWInMode, ProductsReadTheRoundedMasterAfterEachStep) {
  const Trainee ours = Trainee::Create(GetParam(), kHyper);
  for (int64_t step = 0; step < 5; ++step) {
    const at::Tensor before = ours.Weights();
    ours.Step(step, 1e-2);
    EXPECT_FALSE(BitEqual(ours.Weights(), before));
    ExpectRounded(*ours.store);
  }
}

TEST_P(AdamWInMode, ASkippedStepChangesNoBit) {
  const Trainee ours = Trainee::Create(GetParam(), kHyper);
  ours.Step(0, 1e-2);
  const auto state = [&] {
    std::vector<at::Tensor> all = ours.store->weights().Defined();
    all.insert(all.end(), {ours.adamw->exp_avg(), ours.adamw->exp_avg_sq(),
                           ours.adamw->step()});
    for (at::Tensor& tensor : all) tensor = tensor.clone();
    return all;
  };
  const std::vector<at::Tensor> before = state();
  ours.Step(1, 1e-2, std::numeric_limits<double>::quiet_NaN(), /*skip=*/true);
  const std::vector<at::Tensor> after = state();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(BitEqual(before[i], after[i])) << "tensor " << i;
  }
}

TEST_P(AdamWInMode, DoesNotChangeFrozenParametersAndGaps) {
  const Trainee ours = Trainee::Create(GetParam(), kHyper);
  const at::Tensor before = WeightsOf(*ours.store);
  ours.Step(0, 1e-2);
  at::Tensor untouched = at::ones({before.numel()}, at::kBool);
  for (const ParameterSlice& slice : ours.store->slices()) {
    if (slice.trainable) {
      untouched.narrow(0, slice.offset, slice.numel).fill_(false);
    }
  }
  EXPECT_TRUE(BitEqual(WeightsOf(*ours.store).masked_select(untouched),
                       before.masked_select(untouched)));
  const at::Tensor gaps = untouched.narrow(0, 0, ours.Weights().numel());
  EXPECT_GT(gaps.sum().item<int64_t>(), 0);
  for (const at::Tensor& flat :
       {ours.adamw->exp_avg(), ours.adamw->exp_avg_sq()}) {
    EXPECT_EQ(flat.masked_select(gaps).count_nonzero().item<int64_t>(), 0);
  }
  // What remains of the weights' buffers without the slices.
  const WeightBuffers& left = ours.store->weights();
  const auto clear = [](const at::Tensor& buffer, int64_t begin,
                        int64_t count) {
    buffer.narrow(0, begin, count).zero_();
  };
  for (const ParameterSlice& slice : ours.store->slices()) {
    const WeightPlace& place = slice.weights;
    if (place.split) {
      clear(left.high, place.offset, slice.numel);
      clear(left.low, place.offset, slice.numel);
    } else {
      clear(left.master, place.offset, slice.numel);
    }
    if (place.shadow) clear(left.shadow, *place.shadow, slice.numel);
  }
  for (const at::Tensor& buffer : left.Defined()) {
    EXPECT_EQ(buffer.count_nonzero().item<int64_t>(), 0);
  }
}

TEST_P(AdamWInMode, ContinuesFromACopiedStateBitForBit) {
  const Trainee straight = Trainee::Create(GetParam(), kHyper);
  for (int64_t step = 0; step < 3; ++step) straight.Step(step, 1e-2);
  const Trainee resumed = Trainee::Create(GetParam(), kHyper);
  SetWeights(WeightsOf(*straight.store), resumed.store.get());
  resumed.adamw->exp_avg().copy_(straight.adamw->exp_avg());
  resumed.adamw->exp_avg_sq().copy_(straight.adamw->exp_avg_sq());
  resumed.adamw->step().copy_(straight.adamw->step());
  for (const Trainee* trainee : {&straight, &resumed}) trainee->Step(3, 1e-2);
  EXPECT_TRUE(BitEqual(straight.Weights(), resumed.Weights()));
}

TEST_P(AdamWInMode, CountsMovedBytes) {
  const Trainee ours = Trainee::Create(GetParam(), kHyper);
  const int64_t element = GetParam().precision == "BF16_PURE" ? 2 : 4;
  EXPECT_EQ(ours.adamw->state_bytes(),
            2 * element * ours.store->trainable_extent() + 8);
}

INSTANTIATE_TEST_SUITE_P(, AdamWInMode, ::testing::ValuesIn(kModes), ModeName);

class GpuAdamW : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }
};

// In FP32 the kernel may contract multiplications and additions that the CPU
// loop rounds separately; with BF16 state such a difference can change a
// rounding, by 2^-8.
TEST_P(GpuAdamW, EqualsTheCpu) {
  const std::string config =
      std::string(kHyper) +
      " groups { name: 'matrices' patterns: '*.weight' }"
      " groups { name: 'gains' patterns: '*.gain' weight_decay: 0 }";
  // More elements than one pass of a full grid updates (132 * 5 * 1,024).
  const Trainee cpu = Trainee::Create(GetParam(), config, at::kCPU, 7001);
  const Trainee gpu =
      Trainee::Create(GetParam(), config, at::Device(at::kCUDA, 0), 7001);
  const bool pure = GetParam().precision == "BF16_PURE";
  const int64_t steps = pure ? 1 : 10;
  for (int64_t step = 0; step < steps; ++step) {
    cpu.Step(step, Rate(step), /*grad_scale=*/0.5);
    gpu.Step(step, Rate(step), /*grad_scale=*/0.5);
  }
  const double bound = pure ? std::ldexp(1, -7) : 1e-6;
  EXPECT_LT(WorstRelativeError(*cpu.store, gpu.Weights(), cpu.Weights()),
            bound);
  EXPECT_LT(WorstRelativeError(*cpu.store, gpu.adamw->exp_avg(),
                               cpu.adamw->exp_avg()),
            bound);
  EXPECT_LT(WorstRelativeError(*cpu.store, gpu.adamw->exp_avg_sq(),
                               cpu.adamw->exp_avg_sq()),
            bound);
  EXPECT_EQ(gpu.adamw->step().item<int64_t>(), steps);
  ExpectRounded(*gpu.store);
}

TEST_P(GpuAdamW, ASkippedStepChangesNoBit) {
  const Trainee gpu =
      Trainee::Create(GetParam(), kHyper, at::Device(at::kCUDA, 0));
  gpu.Step(0, 1e-2);
  const at::Tensor weights = gpu.Weights();
  const at::Tensor exp_avg = gpu.adamw->exp_avg().clone();
  const at::Tensor exp_avg_sq = gpu.adamw->exp_avg_sq().clone();
  gpu.Step(1, 1e-2, std::numeric_limits<double>::quiet_NaN(), /*skip=*/true);
  EXPECT_TRUE(BitEqual(gpu.Weights(), weights));
  EXPECT_TRUE(BitEqual(gpu.adamw->exp_avg(), exp_avg));
  EXPECT_TRUE(BitEqual(gpu.adamw->exp_avg_sq(), exp_avg_sq));
  EXPECT_EQ(gpu.adamw->step().item<int64_t>(), 1);
}

INSTANTIATE_TEST_SUITE_P(, GpuAdamW, ::testing::ValuesIn(kModes), ModeName);

struct BadGroups {
  std::string groups;
  std::string message;
};

class AdamWGroups : public ::testing::TestWithParam<BadGroups> {};

TEST_P(AdamWGroups, AreRejectedByName) {
  auto store = ParameterStore::Create(OddBlocks(), {});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto policy = CreatePrecisionPolicy(PrecisionConfig(), 1, false);
  const auto adamw =
      CreateAdamW("lr: 1 " + GetParam().groups, **store, *policy);
  EXPECT_EQ(adamw.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(adamw.status().message()),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    , AdamWGroups,
    ::testing::Values(
        BadGroups{"groups { name: 'a' patterns: '*.weight' }",
                  "parameter norm.gain matches no group"},
        BadGroups{"groups { name: 'a' patterns: '*' } "
                  "groups { name: 'b' patterns: 'norm.*' }",
                  "parameter norm.gain matches both \"a\" and \"b\""},
        BadGroups{"groups { name: 'a' patterns: '*' patterns: 'nrom.*' }",
                  "pattern \"nrom.*\" of group \"a\" matches no parameter"},
        // q and k are fused and meet at element 91.
        BadGroups{"groups { name: 'a' patterns: 'q.*' patterns: '*.gain' } "
                  "groups { name: 'b' patterns: 'k.*' patterns: 'ffn.*' }",
                  "parameter k.weight of group \"b\" is fused with a"}));

TEST(AdamWCreate, RefusesMastersInAnotherDtypeThanItsMoments) {
  ParameterStoreOptions options;
  options.weights = {at::kBFloat16, at::kBFloat16};
  auto store = ParameterStore::Create(OddBlocks(), options);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto policy = CreatePrecisionPolicy(PrecisionConfig(), 1, false);
  const auto adamw = CreateAdamW("lr: 1", **store, *policy);
  EXPECT_THAT(std::string(adamw.status().message()),
              HasSubstr("the store has BFloat16 and the policy FP32 Float"));
}

}  // namespace
}  // namespace tessera
