#include "framework/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/base/ignored_target.h"
#include "framework/cuda/device.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/ops/linear/linear.h"
#include "framework/program/executor.h"
#include "framework/program/rewrites/fuse_ops.h"
#include "gtest/gtest.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/framework/ops/ops_as_functions.h"
#include "tests/testing/error_budget.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

// Chunks of 128 rows, where there are up to 512. As many chunks as in real
// runs: each rounds the weight's gradient once more.
constexpr LogitChunks kSmallChunks = {.bytes = 1, .min_rows = 128};

constexpr CrossEntropyOptions kAll = {
    .soft_cap = 3, .objective = {.label_smoothing = 0.1, .z_loss = 0.01}};

struct Case {
  int64_t rows = 0, width = 0, vocab = 0;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType gradient = at::kFloat;  // of the weight
  CrossEntropyOptions options;
};

struct Inputs {
  at::Tensor x, weight, targets;
};

struct Outcome {
  at::Tensor loss, dx, dw;
};

enum class How { kTwoOps, kFused, kInSmallChunks };

class LinearCrossEntropyTest : public DeviceTest {
 protected:
  Inputs MakeInputs(const Case& c) const {
    at::Tensor targets =
        at::remainder(at::arange(c.rows, at::kLong) * 7919, c.vocab);
    if (c.rows > 1) targets[c.rows / 2] = kIgnoredTarget;
    return {Randn({c.rows, c.width}, 3, c.dtype, device()),
            Randn({c.vocab, c.width}, 4, c.dtype, device()) * 0.3,
            targets.to(device())};
  }

  // With plain autograd. `seed`: the gradient of the loss.
  static Outcome Plain(const Case& c, const Inputs& in, double seed) {
    const at::Tensor x = in.x.detach().clone().requires_grad_();
    const at::Tensor w = in.weight.detach().clone().requires_grad_();
    const at::Tensor loss =
        PlainCrossEntropySum(at::linear(x, w), in.targets, c.options);
    torch::autograd::backward({loss}, {at::full_like(loss, seed)});
    return {loss.detach(), x.grad(), w.grad()};
  }

  // As a program. Starts from gradients of `before` if it is given.
  Outcome Run(const Case& c, const Inputs& in, double seed, How how,
              std::optional<double> before = std::nullopt) const {
    PrecisionPolicy policy = PolicyFor(c.dtype, c.dtype);
    ProgramTarget target = {.device = DeviceOf(device()), .precision = policy};
    ProgramBuilder b(target);
    const Value x = b.Input("x", {in.x.sizes().vec(), c.dtype}, true);
    const Value targets = b.Input("targets", {{c.rows}, at::kLong});
    const Weight weight =
        b.Parameter({.name = "p", .members = {{"p", in.weight.sizes().vec()}}});
    Value loss;
    if (how == How::kInSmallChunks) {
      const Value w = b.Read(weight, b.dtype(OpClass::kWeights));
      loss = b.Add(LinearCrossEntropy({.dtype = c.dtype}, c.dtype,
                                      KernelKindFor(target.device, c.dtype),
                                      c.options, kSmallChunks),
                   "head", {x, w, targets}, {{{}, b.dtype(OpClass::kLoss)}})[0];
    } else {
      loss = tessera::CrossEntropySum(b, tessera::Linear(b, x, weight), targets,
                                      c.options);
    }
    b.Output(loss);
    FusedProgram fused = FuseOps(std::move(b).Build().value(),
                                 [&](Fusion, const OpNode&, const OpNode&) {
                                   return how == How::kFused;
                                 });
    const Program& program = fused.program;
    loss = fused.renumbered[loss.index];
    EXPECT_EQ(program.ops().size(), how == How::kTwoOps ? 2u : 1u);

    OneParameter p =
        MakeParameter(in.weight.sizes(), {.device = device(),
                                          .weights = {c.dtype, c.dtype},
                                          .gradient = c.gradient});
    p.p->As(c.dtype).copy_(in.weight);
    if (before.has_value()) p.p->grad().fill_(*before);
    Schedule schedule = TrainingSchedule(program, loss);
    if (before.has_value()) AddToGradients(&schedule);
    Executor executor(schedule, PlanLifetimes(schedule), *p.store);
    executor.SetInput(x, in.x.clone());
    executor.SetInput(targets, in.targets);
    executor.SetInput(
        schedule.loss_gradient,
        at::full({}, seed,
                 at::device(device()).dtype(program.info(loss).type.dtype)));
    executor.Run();
    return {executor.Get(loss).clone(),
            executor.Get(schedule.input_gradients[0].gradient).clone(),
            p.p->grad().clone()};
  }

  // In every dtype, which it sets in `c`.
  void ExpectAgreesWithPlainAutograd(Case c) const {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.width << " x "
                                        << c.vocab << ", " << dtype);
      c.dtype = c.gradient = dtype;
      const Inputs in = MakeInputs(c);
      const Inputs wide = {in.x.to(at::kDouble), in.weight.to(at::kDouble),
                           in.targets};
      const Outcome got = Run(c, in, 0.25, How::kInSmallChunks);
      const Outcome naive = Plain(c, in, 0.25);
      const Outcome oracle = Plain(c, wide, 0.25);
      // A single number can be accurate by chance, so it is not a baseline.
      EXPECT_NEAR(got.loss.item<double>() / oracle.loss.item<double>(), 1,
                  dtype == at::kBFloat16 ? 1e-3
                  : dtype == at::kHalf   ? 1e-4
                  : dtype == at::kFloat  ? 1e-6
                                         : 1e-12);
      ExpectWithinBudget(got.dx, naive.dx, oracle.dx);
      ExpectWithinBudget(got.dw, naive.dw, oracle.dw);
    }
  }

 private:
  static DeviceInfo DeviceOf(at::Device device) {
    return device.is_cuda() ? OpenCudaDevice(0).value() : CpuDevice();
  }
};

TEST_P(LinearCrossEntropyTest, OneChunkHasTheBitsOfTwoOps) {
  for (const CrossEntropyOptions& options : {CrossEntropyOptions(), kAll}) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      const Case c = {127, 40, 1000, dtype, dtype, options};
      const Inputs in = MakeInputs(c);
      const Outcome two = Run(c, in, 0.25, How::kTwoOps);
      const Outcome one = Run(c, in, 0.25, How::kFused);
      EXPECT_TRUE(BitEqual(one.loss, two.loss)) << dtype;
      EXPECT_TRUE(BitEqual(one.dx, two.dx)) << dtype;
      EXPECT_TRUE(BitEqual(one.dw, two.dw)) << dtype;
    }
  }
}

TEST_P(LinearCrossEntropyTest, ChunksAgreeWithPlainAutograd) {
  for (const auto& [rows, width, vocab] : std::vector<std::array<int64_t, 3>>{
           {1, 8, 40}, {127, 96, 40}, {1000, 40, 97}, {1024, 80, 1003}}) {
    ExpectAgreesWithPlainAutograd(
        {.rows = rows, .width = width, .vocab = vocab});
  }
}

// Not for a single row, whose gradients all have the same rounding of lse.
TEST_P(LinearCrossEntropyTest, ChunksWithOptionsAgreeWithPlainAutograd) {
  for (const auto& [rows, width, vocab] :
       std::vector<std::array<int64_t, 3>>{{127, 96, 40},
                                           {1000, 40, 127},
                                           {1024, 80, 1000},
                                           {130, 16, 50257}}) {
    ExpectAgreesWithPlainAutograd(
        {.rows = rows, .width = width, .vocab = vocab, .options = kAll});
  }
}

// The plain computation hardly rounds here, so it is not a baseline.
TEST_P(LinearCrossEntropyTest, AVocabularyOfOneWordAgreesWithPlainAutograd) {
  const Case c = {300, 24, 1, at::kFloat, at::kFloat, kAll};
  const Inputs in = MakeInputs(c);
  const Outcome got = Run(c, in, 0.25, How::kInSmallChunks);
  const Outcome oracle = Plain(
      c, {in.x.to(at::kDouble), in.weight.to(at::kDouble), in.targets}, 0.25);
  const auto near = [](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a.to(at::kDouble), b, /*rtol=*/1e-5, /*atol=*/1e-5);
  };
  EXPECT_TRUE(near(got.loss, oracle.loss));
  EXPECT_TRUE(near(got.dx, oracle.dx));
  EXPECT_TRUE(near(got.dw, oracle.dw));
}

// The gradient buffer of several micro-batches.
TEST_P(LinearCrossEntropyTest, AddsToAnFp32Gradient) {
  for (const How how : {How::kFused, How::kInSmallChunks}) {
    const Case c = {300, 24, 50, at::kBFloat16, at::kFloat};
    const Inputs in = MakeInputs(c);
    const Outcome once = Run(c, in, 1, how);
    const Outcome more = Run(c, in, 1, how, /*before=*/3);
    EXPECT_EQ(more.dw.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(more.dw - 3, once.dw, /*rtol=*/1e-5,
                             /*atol=*/1e-4));
    EXPECT_TRUE(BitEqual(more.dx, once.dx));
  }
}

// The last word's logit is alone in what a thread of the GPU's kernel reads.
TEST_P(LinearCrossEntropyTest, ANanLogitGivesANanLoss) {
  for (const at::ScalarType dtype : FloatDtypes(device())) {
    for (const int64_t vocab : {96, 97}) {
      const Case c = {130, 24, vocab, dtype, dtype};
      const Inputs in = MakeInputs(c);
      in.targets.zero_();
      in.weight[vocab - 1].fill_(NAN);
      for (const How how : {How::kTwoOps, How::kFused, How::kInSmallChunks}) {
        const Outcome got = Run(c, in, 0.25, how);
        EXPECT_TRUE(got.loss.isnan().item<bool>()) << dtype << ", " << vocab;
        EXPECT_TRUE(got.dx.isnan().all().item<bool>()) << dtype;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearCrossEntropyTest,
                         ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, LinearCrossEntropyTest,
                         ::testing::Values(at::kCUDA));

// The last chunk is a smaller one; the rows of logits are padded.
TEST(LinearCrossEntropyProducts, AreThoseOfBothSizesOfChunks) {
  constexpr int64_t kRows = 3 * 128 + 40, kWidth = 1016, kVocab = 8201;
  const auto products_in = [](at::ScalarType dtype) {
    const std::unique_ptr<Op> op =
        LinearCrossEntropy({.dtype = dtype, .gradient = at::kFloat}, dtype,
                           KernelKind::kCuda, {}, kSmallChunks);
    op->SetTypes({{{kRows, kWidth}, dtype},
                  {{kVocab, kWidth}, dtype},
                  {{kRows}, at::kLong}},
                 {{{}, at::kFloat}});
    return op->Products();
  };
  // LibTorch computes FP32 without TF32.
  EXPECT_TRUE(products_in(at::kFloat).empty());
  const std::vector<MatrixProduct> products = products_in(at::kBFloat16);
  ASSERT_EQ(products.size(), 6u);
  for (int chunk = 0; chunk < 2; ++chunk) {
    const int64_t rows = chunk == 0 ? 128 : 40;
    const MatrixProduct &logits = products[3 * chunk],
                        &dw = products[3 * chunk + 1],
                        &dx = products[3 * chunk + 2];
    EXPECT_EQ(logits.out.sizes(), at::IntArrayRef({rows, kVocab}));
    EXPECT_EQ(logits.out.strides(), at::IntArrayRef({8208, 1}));
    EXPECT_EQ(logits.b.strides(), at::IntArrayRef({1, kWidth}));
    EXPECT_EQ(dw.a.sizes(), at::IntArrayRef({kVocab, rows}));
    EXPECT_EQ(dw.a.strides(), at::IntArrayRef({1, 8208}));
    EXPECT_EQ(dw.out.scalar_type(), at::kFloat);
    EXPECT_EQ(dx.out.sizes(), at::IntArrayRef({rows, kWidth}));
    EXPECT_EQ(dx.out.scalar_type(), at::kBFloat16);
  }
}

TEST(LogitChunksTest, AreFewLargeAndMultiplesOfATile) {
  constexpr int64_t kMiB = 1 << 20;
  const LogitChunks chunks;
  // 4 x 512 tokens, a vocabulary of 10,000 in BF16: 39 MiB.
  EXPECT_EQ(chunks.RowsOfChunk(2048, 20000), 2048);
  // 16 k tokens: 128 MiB are 6,710 rows.
  EXPECT_EQ(chunks.RowsOfChunk(16384, 20000), 6656);
  // At most four.
  EXPECT_EQ(chunks.RowsOfChunk(65536, 20000), 16384);
  // Not fewer than 1,024 rows.
  EXPECT_EQ(chunks.RowsOfChunk(2048, 2 * 128256), 1024);
  EXPECT_EQ(chunks.RowsOfChunk(1, kMiB), 1);
}

}  // namespace
}  // namespace tessera::testing
