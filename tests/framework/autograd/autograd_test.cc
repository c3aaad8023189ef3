// Activation checkpointing and the accounting of saved tensors.

#include "torch/csrc/autograd/autograd.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/autograd/activation_checkpoint.h"
#include "framework/autograd/saved_tensors.h"
#include "framework/ops/linear.h"
#include "framework/ops/residual.h"
#include "framework/ops/rms_norm.h"
#include "framework/ops/swiglu.h"
#include "framework/params/activation_arena.h"
#include "framework/params/parameter_store.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"

namespace tessera::testing {
namespace {

using Segment = std::function<at::Tensor(const at::Tensor&)>;
using Wrapper = std::function<at::Tensor(Segment, const at::Tensor&)>;

constexpr int64_t kRows = 32, kWidth = 40, kHidden = 96;
constexpr int kLayers = 3;

at::Tensor Plain(const Segment& fn, const at::Tensor& x) { return fn(x); }

// A stack of feed-forward blocks with dropout.
class Stack {
 public:
  explicit Stack(at::Device device) : device_(device) {
    std::vector<ParameterBlockSpec> blocks;
    for (int i = 0; i < kLayers; ++i) {
      blocks.push_back(Block(Name(i, "gain"), {kWidth}, Init::kOnes));
      blocks.push_back(
          Block(Name(i, "up"), {2 * kHidden, kWidth}, Init::kLinear));
      blocks.push_back(
          Block(Name(i, "down"), {kWidth, kHidden}, Init::kLinear));
    }
    auto store = ParameterStore::Create(blocks, {.device = device});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  at::Tensor Layer(int i, const at::Tensor& x) {
    const at::Tensor y =
        RmsNorm(x, store_->Get(Name(i, "gain")), 1e-5, at::kFloat);
    const at::Tensor h = SwiGlu(Linear(y, store_->Get(Name(i, "up"))));
    return AddResidual(x, Linear(at::dropout(h, /*p=*/0.3, /*train=*/true),
                                 store_->Get(Name(i, "down"))));
  }

  at::Tensor Forward(const at::Tensor& x, const Wrapper& wrapper) {
    at::Tensor y = x;
    for (int i = 0; i < kLayers; ++i) {
      y = wrapper([this, i](const at::Tensor& z) { return Layer(i, z); }, y);
    }
    return y;
  }

  at::Tensor Input(bool requires_grad) const {
    return at::linspace(-2, 2, kRows * kWidth, at::device(device_))
        .view({kRows, kWidth})
        .requires_grad_(requires_grad);
  }

  ParameterStore& store() { return *store_; }

 private:
  static std::string Name(int layer, const char* what) {
    return absl::StrCat(layer, ".", what);
  }
  static ParameterBlockSpec Block(const std::string& name,
                                  std::vector<int64_t> shape, Init init) {
    return {.name = name, .members = {{name, std::move(shape), init}}};
  }

  const at::Device device_;
  std::unique_ptr<ParameterStore> store_;
};

void SetSeed(at::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

struct StepResult {
  at::Tensor loss, grads, dx;
  at::Tensor draw_after;  // where the random state is left
};

StepResult Step(Stack& stack, const at::Tensor& x, const Wrapper& wrapper) {
  SetSeed(x.device(), 11);
  stack.store().grad().zero_();
  stack.store().BeginGradients();
  const at::Tensor loss = stack.Forward(x, wrapper).square().sum();
  torch::autograd::backward({loss});
  return {.loss = loss.detach(),
          .grads = stack.store().grad().clone(),
          .dx = x.grad(),
          .draw_after = at::rand({4}, x.options().requires_grad(false))};
}

void ExpectSameBits(const StepResult& a, const StepResult& b) {
  EXPECT_TRUE(BitEqual(a.loss, b.loss));
  EXPECT_TRUE(BitEqual(a.grads, b.grads));
  EXPECT_GT(a.grads.abs().sum().item<double>(), 0);
  ASSERT_EQ(a.dx.defined(), b.dx.defined());
  if (a.dx.defined()) {
    EXPECT_TRUE(BitEqual(a.dx, b.dx));
  }
  EXPECT_TRUE(BitEqual(a.draw_after, b.draw_after));
}

class CheckpointTest : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
  }
  at::Device device() const { return at::Device(GetParam(), 0); }
};

TEST_P(CheckpointTest, SameBitsAsThePlainRunDropoutIncluded) {
  Stack stack(device());
  ExpectSameBits(
      Step(stack, stack.Input(/*requires_grad=*/true), Plain),
      Step(stack, stack.Input(/*requires_grad=*/true), Checkpointed));
}

TEST_P(CheckpointTest, ConstantInputStillReachesTheParameters) {
  Stack stack(device());
  ExpectSameBits(
      Step(stack, stack.Input(/*requires_grad=*/false), Plain),
      Step(stack, stack.Input(/*requires_grad=*/false), Checkpointed));
}

TEST_P(CheckpointTest, Nests) {
  Stack stack(device());
  const Wrapper nested = [](Segment fn, const at::Tensor& x) {
    return Checkpointed(
        [fn](const at::Tensor& outer) {
          return Checkpointed(fn, at::dropout(outer, 0.1, true)).tanh();
        },
        x);
  };
  const Wrapper plain = [](Segment fn, const at::Tensor& x) {
    return fn(at::dropout(x, 0.1, true)).tanh();
  };
  ExpectSameBits(Step(stack, stack.Input(true), plain),
                 Step(stack, stack.Input(true), nested));
}

TEST_P(CheckpointTest, AccumulatesOverMicroBatches) {
  Stack stack(device());
  const auto two_micro_batches = [&](const Wrapper& wrapper) {
    stack.store().BeginGradients();
    for (const double scale : {1.0, 0.5}) {
      const at::Tensor x = stack.Input(true).detach() * scale;
      SetSeed(device(), 5);
      torch::autograd::backward({stack.Forward(x, wrapper).sum()});
    }
    return stack.store().grad().clone();
  };
  EXPECT_TRUE(
      BitEqual(two_micro_batches(Plain), two_micro_batches(Checkpointed)));
}

TEST_P(CheckpointTest, RecordsNothingWithoutGrad) {
  const at::NoGradGuard no_grad;
  Stack stack(device());
  EXPECT_FALSE(stack.Forward(stack.Input(false), Checkpointed).requires_grad());
}

TEST_P(CheckpointTest, KeepsOnlyTheInputsOfSegments) {
  Stack stack(device());
  const at::Tensor x = stack.Input(true);
  const auto saved_bytes = [&](const Wrapper& wrapper) {
    SavedTensorMeter meter({stack.store().master()});
    const at::Tensor y = stack.Forward(x, wrapper);
    return meter.live_bytes();
  };
  // x of each layer; the last layer's result is nobody's input.
  EXPECT_EQ(saved_bytes(Checkpointed),
            kLayers * kRows * kWidth * int64_t{sizeof(float)});
  EXPECT_GT(saved_bytes(Plain), 5 * saved_bytes(Checkpointed));
}

// What the first run makes dies with it; the arena is for what lives on.
TEST_P(CheckpointTest, TheFirstRunLeavesTheArenaAlone) {
  Stack stack(device());
  const at::Tensor& gradients = stack.store().grad();
  const char* const begin = static_cast<char*>(gradients.data_ptr());
  std::vector<bool> in_arena;
  const Segment segment = [&](const at::Tensor& x) {
    const at::Tensor y = EmptyActivation({4}, x.options());
    const char* const place = static_cast<char*>(y.data_ptr());
    in_arena.push_back(place >= begin && place < begin + gradients.nbytes());
    return x * 2;
  };
  ActivationArena arena(stack.store(), nullptr);
  const ActivationArenaScope scope(&arena);
  ReachParameter(stack.store().Get("0.up"));
  segment(stack.Input(true));
  Checkpointed(segment, stack.Input(true));
  EXPECT_EQ(in_arena, (std::vector<bool>{true, false}));
}

class SavedTensorTest : public CheckpointTest {};

TEST_P(SavedTensorTest, CountsEachStorageOnceAndUntilBackward) {
  const at::Tensor x =
      at::ones({10, 10}, at::device(device())).requires_grad_();
  const at::Tensor w =
      at::ones({10, 10}, at::device(device())).requires_grad_();
  SavedTensorMeter meter({w});
  at::Tensor y = at::mm(x, w);         // saves x; w is not counted
  at::Tensor z = y * y;                // saves y, twice
  at::Tensor v = z.view({100}).exp();  // saves its own result
  EXPECT_EQ(meter.live_bytes(), 3 * 400);
  torch::autograd::backward({v.sum()});
  EXPECT_EQ(meter.live_bytes(), 0);
  EXPECT_EQ(meter.peak_bytes(), 3 * 400);
  EXPECT_TRUE(x.grad().defined());
}

TEST_P(SavedTensorTest, SavedTensorsMayOutliveTheMeter) {
  const at::Tensor x = at::ones({4}, at::device(device())).requires_grad_();
  at::Tensor y;
  {
    SavedTensorMeter meter;
    y = x.square().sum();
  }
  torch::autograd::backward({y});
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, 2)));
  SavedTensorMeter next;
  EXPECT_EQ(next.live_bytes(), 0);
}

TEST_P(SavedTensorTest, OpsSaveWhatTheirHeadersSay) {
  Stack stack(device());
  const at::Tensor ab =
      at::ones({kRows, 2 * kHidden}, at::device(device())).requires_grad_();
  {
    SavedTensorMeter meter;
    const at::Tensor h = SwiGlu(ab);
    EXPECT_EQ(meter.live_bytes(), ab.nbytes());
  }
  const at::Tensor x = stack.Input(true);
  {
    SavedTensorMeter meter;
    const at::Tensor y =
        RmsNorm(x, stack.store().Get("0.gain"), 1e-5, at::kFloat);
    EXPECT_EQ(meter.live_bytes(), x.nbytes() + kRows * sizeof(float));
  }
  {
    SavedTensorMeter meter;
    const at::Tensor y = AddResidual(x, x.clone());
    EXPECT_EQ(meter.live_bytes(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CheckpointTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, CheckpointTest, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cpu, SavedTensorTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, SavedTensorTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
