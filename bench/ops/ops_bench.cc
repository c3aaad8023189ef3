// Google Benchmark of every op and of AdamW, in BF16, next to what the device
// does at best: a copy of 1 GiB and a product of two 8192 x 8192 matrices,
// measured when the process starts.
//
//   bazel run --config=cuda //bench/ops:ops_bench --
//       --benchmark_filter='rms_norm/.*/16384x2560'
//
// A cell is one benchmark iteration whose time is the median of its samples.
// Each sample finds its operands in memory, not in the L2 cache. Without a GPU
// the cells are small enough for a CPU.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/device_work.h"
#include "bench/measure/timing.h"
#include "benchmark/benchmark.h"
#include "framework/base/statistics.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/ops/embedding/embedding.h"
#include "framework/ops/linear/linear.h"
#include "framework/ops/linear/product_choices.h"
#include "framework/ops/qk_norm/qk_norm.h"
#include "framework/ops/residual/residual.h"
#include "framework/ops/rms_norm/rms_norm.h"
#include "framework/ops/rope/rope.h"
#include "framework/ops/swiglu/swiglu.h"
#include "framework/optim/adamw.h"
#include "framework/program/rewrites/fuse_ops.h"
#include "torch/csrc/autograd/autograd.h"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"

namespace tessera {
namespace {

constexpr double kEps = 1e-5;

struct Shape {
  int64_t tokens = 0, width = 0, vocab = 0;
};

struct Bench {
  DeviceInfo device;
  double gemm_tflops = 0, copy_gb_per_s = 0;
  at::Tensor large;  // much larger than a GPU's L2 cache
  PrecisionPolicy precision = PrecisionPolicy(PrecisionMode::kBf16);
};

// Declares a parameter block of one member.
Weight Block(ProgramBuilder& b, std::vector<int64_t> shape,
             const std::string& name = "weight") {
  return b.Parameter({.name = name, .members = {{name, std::move(shape)}}});
}
Value Rows(ProgramBuilder& b, const Shape& shape, OpClass dtype,
           int64_t width) {
  return b.Input("x", {{shape.tokens, width}, b.dtype(dtype)},
                 /*needs_grad=*/true);
}
// Token ids as [B, S], at most 1024 tokens each.
TensorType Ids(const Shape& shape) {
  const int64_t length = std::min<int64_t>(shape.tokens, 1024);
  return {{shape.tokens / length, length}, at::kLong};
}

// Each adds an op, or two that become one.

void BuildRmsNorm(ProgramBuilder& b, const Shape& s) {
  const Value x = Rows(b, s, OpClass::kActivation, s.width);
  b.Output(RmsNorm(b, x, Block(b, {s.width}), kEps));
}

void BuildAddRmsNorm(ProgramBuilder& b, const Shape& s) {
  const Value x = Rows(b, s, OpClass::kResidual, s.width);
  const Value delta = Rows(b, s, OpClass::kActivation, s.width);
  const Value sum = AddResidual(b, x, delta);
  b.Output(sum);
  b.Output(RmsNorm(b, sum, Block(b, {s.width}), kEps));
}

void BuildResidual(ProgramBuilder& b, const Shape& s) {
  const Value x = Rows(b, s, OpClass::kResidual, s.width);
  const Value delta = Rows(b, s, OpClass::kActivation, s.width);
  b.Output(AddResidual(b, x, delta));
}

constexpr int64_t kHeadDim = 64;

// The fused projection of multi-head attention.
Value Qkv(ProgramBuilder& b, const Shape& s) {
  TensorType type = {Ids(s).shape, b.dtype(OpClass::kMatmul)};
  type.shape.insert(type.shape.end(), {3 * (s.width / kHeadDim), kHeadDim});
  return b.Input("qkv", type, /*needs_grad=*/true);
}

void BuildRope(ProgramBuilder& b, const Shape& s) {
  const RopeAngles angles = MakeRopeAngles(b, Ids(s).shape[1], kHeadDim, {});
  const Value qkv = Qkv(b, s);
  b.Output(Rope(b, qkv, angles, 2 * (s.width / kHeadDim)));
}

// With gains of `width`.
void BuildQkNorm(ProgramBuilder& b, const Shape& s, int64_t width) {
  const Value qkv = Qkv(b, s);
  const Weight queries = Block(b, {width}, "queries");
  const Weight keys = Block(b, {width}, "keys");
  b.Output(QkNorm(b, qkv, {queries, keys}, s.width / kHeadDim, kEps));
}
void BuildHeadQkNorm(ProgramBuilder& b, const Shape& s) {
  BuildQkNorm(b, s, kHeadDim);
}
void BuildProjectionQkNorm(ProgramBuilder& b, const Shape& s) {
  BuildQkNorm(b, s, s.width);
}

void BuildSwiGlu(ProgramBuilder& b, const Shape& s) {
  b.Output(SwiGlu(b, Rows(b, s, OpClass::kActivation, 2 * s.width)));
}

void BuildEmbedding(ProgramBuilder& b, const Shape& s) {
  const Value ids = b.Input("ids", Ids(s));
  b.Output(Embedding(b, ids, Block(b, {s.vocab, s.width})));
}

void BuildLinearCrossEntropy(ProgramBuilder& b, const Shape& s) {
  const Value x = Rows(b, s, OpClass::kActivation, s.width);
  const Value targets = b.Input("targets", {{s.tokens}, at::kLong});
  const Value logits = Linear(b, x, Block(b, {s.vocab, s.width}),
                              {.dtype = b.dtype(OpClass::kLogits)});
  b.Output(CrossEntropySum(b, logits, targets));
}

using Build = void (*)(ProgramBuilder& b, const Shape& shape);

absl::StatusOr<std::vector<Work>> OpWork(Build build, const Bench& bench,
                                         const Shape& shape) {
  const auto products = std::make_shared<ProductChoices>();
  ProgramBuilder b({.device = bench.device,
                    .precision = bench.precision,
                    .products = products});
  build(b, shape);
  ASSIGN_OR_RETURN(Program built, std::move(b).Build());
  const auto program = std::make_shared<Program>(
      FuseOps(std::move(built), [](Fusion, const OpNode&, const OpNode&) {
        return true;
      }).program);
  RETURN_IF_ERROR(StatusFromTorch([&] {
    ChooseProducts(ProductsOf(*program),
                   {.device = bench.device.device, .tune = true},
                   products.get());
  }));
  ASSIGN_OR_RETURN(std::vector<Work> passes,
                   PassesOf(program->ops().back(), *program,
                            {.device = bench.device.device,
                             .gradient = bench.precision[OpClass::kGradient],
                             .vocab = shape.vocab}));
  for (Work& pass : passes) {
    pass.run = [program, run = std::move(pass.run)] { return run(); };
  }
  return passes;
}

// LibTorch's RMSNorm of BF16 tensors, with a gain in BF16: its fused kernels
// take no other.
absl::StatusOr<std::vector<Work>> TorchRmsNormWork(const Bench& bench,
                                                   const Shape& s) {
  std::vector<Work> passes;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const at::TensorOptions options =
        at::TensorOptions(bench.device.device).dtype(at::kBFloat16);
    const at::Tensor x = at::randn({s.tokens, s.width}, options);
    const at::Tensor gain = at::randn({s.width}, options);
    const at::Tensor dy = at::randn_like(x);
    x.requires_grad_();
    gain.requires_grad_();
    const auto forward = [x, gain] {
      return at::rms_norm(x, {x.size(-1)}, gain, kEps);
    };
    const int64_t bytes = static_cast<int64_t>(x.nbytes() + gain.nbytes());
    passes = {{.name = "forward",
               .cost = {.bytes = bytes + static_cast<int64_t>(x.nbytes())},
               .run =
                   [forward] {
                     const at::NoGradGuard no_grad;
                     return StatusFromTorch(forward);
                   }},
              {.name = "backward",
               .cost = {.bytes = 2 * bytes + static_cast<int64_t>(dy.nbytes())},
               .run = [x, gain, dy, y = forward()] {
                 return StatusFromTorch([&] {
                   torch::autograd::grad({y}, {x, gain}, {dy},
                                         /*retain_graph=*/true);
                 });
               }}};
  }));
  return passes;
}

// AdamW of one block of tokens x width weights that products read in BF16.
absl::StatusOr<std::vector<Work>> AdamWWork(const Bench& bench,
                                            const Shape& shape) {
  const PrecisionPolicy& precision = bench.precision;
  ASSIGN_OR_RETURN(const std::shared_ptr<ParameterStore> store,
                   ParameterStore::Create(
                       {{.name = "weight",
                         .members = {{.name = "weight",
                                      .shape = {shape.tokens, shape.width}}},
                         .reads = {precision[OpClass::kWeights]}}},
                       {.device = bench.device.device,
                        .weights = {precision[OpClass::kMasterWeights],
                                    precision[OpClass::kWeights]},
                        .gradient = precision[OpClass::kGradient]}));
  ASSIGN_OR_RETURN(
      const std::shared_ptr<AdamW> adamw,
      AdamW::Create(AdamWOptions(), /*groups=*/{}, *store, precision));
  StepControl control;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    control.lr = at::full({1}, 1e-3, store->grad().options().dtype(at::kFloat));
  }));
  // Reads and writes moments and weights; the gradient is only read.
  int64_t bytes = 2 * adamw->state_bytes();
  for (const at::Tensor& weights : store->weights().Defined()) {
    bytes += 2 * static_cast<int64_t>(weights.nbytes());
  }
  bytes += static_cast<int64_t>(store->grad().nbytes());
  return std::vector<Work>{
      {.name = "update",
       .cost = {.bytes = bytes},
       .run = [store, adamw, control] { return adamw->Step(control); }}};
}

absl::Status Run(const Bench& bench, const Work& work,
                 benchmark::State& state) {
  // Evicts the operands, leaves nothing to be written back, and keeps the GPU
  // busy until the host has issued the work.
  const auto evict = [&] {
    return StatusFromTorch([&] { bench.large.max(); });
  };
  ASSIGN_OR_RETURN(const Times times,
                   TimeCalls(work.run, bench.device.device,
                             {.warmup = 3, .iterations = 30}, evict));
  const double ms = *Median(times.ms);
  for (auto _ : state) state.SetIterationTime(ms * 1e-3);
  if (work.cost.product_flops > 0) {
    const double tflops = work.cost.product_flops / ms * 1e-9;
    state.counters["TFLOP/s"] = tflops;
    state.counters["%GEMM"] = 100 * tflops / bench.gemm_tflops;
  } else {
    const double gb_per_s = static_cast<double>(work.cost.bytes) / ms * 1e-6;
    state.counters["GB/s"] = gb_per_s;
    state.counters["%copy"] = 100 * gb_per_s / bench.copy_gb_per_s;
  }
  return absl::OkStatus();
}

// Makes the work of all passes, in order.
using Make = std::function<absl::StatusOr<std::vector<Work>>(const Shape&)>;

void Register(const Bench& bench, const std::string& name,
              const std::vector<std::string>& passes, const Shape& shape,
              const Make& make) {
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    const auto run = [=, &bench](benchmark::State& state) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<Work> work, make(shape));
      if (pass > 0) RETURN_IF_ERROR(work[0].run());
      return Run(bench, work[pass], state);
    };
    benchmark::RegisterBenchmark(
        absl::StrCat(name, "/", passes[pass], "/", shape.tokens, "x",
                     shape.width)
            .c_str(),
        [run](benchmark::State& state) {
          const absl::Status status = run(state);
          if (!status.ok()) {
            state.SkipWithError(std::string(status.message()).c_str());
          }
        })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
}

void RegisterAll(const Bench& bench, const Shape& shape,
                 const std::vector<int64_t>& vocabs) {
  const std::vector<std::string> passes = {"forward", "backward"};
  const auto op = [&bench](Build build) -> Make {
    return [&bench, build](const Shape& s) { return OpWork(build, bench, s); };
  };
  Register(bench, "rms_norm", passes, shape, op(BuildRmsNorm));
  Register(bench, "torch_rms_norm", passes, shape,
           [&bench](const Shape& s) { return TorchRmsNormWork(bench, s); });
  Register(bench, "add_rms_norm", passes, shape, op(BuildAddRmsNorm));
  Register(bench, "residual", passes, shape, op(BuildResidual));
  Register(bench, "qk_norm_head", passes, shape, op(BuildHeadQkNorm));
  Register(bench, "qk_norm_projection", passes, shape,
           op(BuildProjectionQkNorm));
  Register(bench, "rope", passes, shape, op(BuildRope));
  Register(bench, "swiglu", passes, shape, op(BuildSwiGlu));
  Register(bench, "embedding", passes, shape, op(BuildEmbedding));
  Register(bench, "adamw", {"update"}, shape,
           [&bench](const Shape& s) { return AdamWWork(bench, s); });
  for (const int64_t vocab : vocabs) {
    Register(bench, absl::StrCat("linear_cross_entropy/v", vocab),
             {"forward", "forward_backward"},
             {shape.tokens, shape.width, vocab}, op(BuildLinearCrossEntropy));
  }
}

absl::Status RunAll() {
  Bench bench;
  ASSIGN_OR_RETURN(bench.device, OpenBenchDevice());
  ASSIGN_OR_RETURN(bench.gemm_tflops, MeasureGemmTflops(bench.device));
  ASSIGN_OR_RETURN(bench.copy_gb_per_s, MeasureCopyGbPerS(bench.device));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    bench.large = at::zeros({bench.device.is_cuda() ? 1 << 28 : 1 << 16},
                            at::TensorOptions(bench.device.device));
  }));
  benchmark::AddCustomContext("build", BuildSummary());
  benchmark::AddCustomContext("device", bench.device.name);
  benchmark::AddCustomContext("BF16 GEMM, TFLOP/s",
                              absl::StrCat(bench.gemm_tflops));
  benchmark::AddCustomContext("copy, GB/s", absl::StrCat(bench.copy_gb_per_s));
  if (!bench.device.is_cuda()) {
    RegisterAll(bench, {64, 128, 100}, {100});
  } else {
    for (const int64_t tokens : {4096, 16384}) {
      for (const int64_t width : {768, 2560}) {
        RegisterAll(bench, {tokens, width, 50257}, {10000, 50257, 128256});
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times every op and AdamW next to a copy and a matrix product: "
                "ops_bench [--benchmark_filter=REGEX]",
       .version = tessera::BuildSummary()},
      tessera::RunAll);
}
