// Google Benchmark of the attention backends, each compared with cuDNN's fused
// attention or another of LibTorch's kernels:
//
//   bazel run --config=cuda //bench/attention_backends:attention_bench --
//       --benchmark_filter='FLASH_CUDA/.*/d128/n4096/causal'
//
// The cells have 16,384 tokens and a width of about 2,048. A cell is one
// benchmark iteration whose time is the median of its samples. Without a GPU
// the cells are small enough for a CPU.

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "attention_backends/backend_table.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/attention_measurement.h"
#include "bench/measure/device_work.h"
#include "benchmark/benchmark.h"
#include "framework/base/status_macros.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"

ABSL_FLAG(bool, deterministic, false,
          "only backends whose gradients are equal bit for bit on equal input");
ABSL_FLAG(std::string, reference, "TORCH_CUDNN",
          "backend to compare with: TORCH_CUDNN, TORCH_FLASH or "
          "TORCH_EFFICIENT");
ABSL_FLAG(int, samples, 30, "maximum number of timed calls of a cell");
ABSL_FLAG(absl::Duration, cell_time, absl::Seconds(2),
          "time after which no further calls of a cell are made");

namespace tessera {
namespace {

constexpr absl::string_view kKernels[] = {"CUDNN", "FLASH", "EFFICIENT"};

struct Bench {
  DeviceInfo device;
  double gemm_tflops = 0;
  // The backend to compare with; null if it is not part of this build.
  const AttentionBackend* reference = nullptr;
  std::string ratio;  // the name of the counter
};

void SetCounters(const Bench& bench, const AttentionCase& shape,
                 AttentionPass pass, const AttentionMeasurement& measured,
                 benchmark::State& state) {
  const PassMeasurement& timed =
      pass == AttentionPass::kForward ? *measured.forward : *measured.backward;
  const double seconds = timed.ms.median * 1e-3;
  const double tflops = AttentionTflops(shape, pass, timed.ms.median);
  state.counters["TFLOP/s"] = tflops;
  state.counters["%GEMM"] = 100 * tflops / bench.gemm_tflops;
  state.counters["GB/s"] = CompulsoryBytes(shape, pass) / seconds * 1e-9;
  if (bench.device.is_cuda()) {
    state.counters["saved_MiB"] = measured.saved_bytes / kMebibyte;
    state.counters["peak_MiB"] = measured.peak_bytes / kMebibyte;
  }
  if (!timed.reference_ratio.has_value()) return;
  const Summary& ratio = *timed.reference_ratio;
  state.counters[bench.ratio] = ratio.median;
  state.counters[bench.ratio + "_spread%"] = 100 * ratio.std / ratio.median;
}

absl::Status Run(const Bench& bench, const AttentionBackend& backend,
                 const AttentionCase& shape, AttentionPass pass,
                 benchmark::State& state) {
  MeasureOptions options;
  options.forward = pass == AttentionPass::kForward;
  options.backward = pass == AttentionPass::kBackward;
  options.reference = shape.deterministic ? &backend : bench.reference;
  options.repetition.iterations = absl::GetFlag(FLAGS_samples);
  options.repetition.time_limit = absl::GetFlag(FLAGS_cell_time);
  ASSIGN_OR_RETURN(const AttentionMeasurement measured,
                   MeasureAttention(backend, shape, bench.device, options));
  const PassMeasurement& timed =
      options.forward ? *measured.forward : *measured.backward;
  for (auto _ : state) state.SetIterationTime(timed.ms.median * 1e-3);
  SetCounters(bench, shape, pass, measured, state);
  return absl::OkStatus();
}

void Register(const Bench& bench, const AttentionBackend& backend,
              const AttentionCase& shape, AttentionPass pass) {
  const std::string name = absl::StrCat(
      backend.name(),
      pass == AttentionPass::kForward ? "/forward" : "/backward", "/d",
      shape.head_dim, "/n", shape.length, "/", MaskName(shape.mask));
  benchmark::RegisterBenchmark(
      name.c_str(),
      [&bench, &backend, shape, pass](benchmark::State& state) {
        const absl::Status status = Run(bench, backend, shape, pass, state);
        if (!status.ok()) {
          state.SkipWithError(std::string(status.message()).c_str());
        }
      })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
}

struct Grid {
  int64_t tokens, width;
  std::vector<int64_t> head_dims, lengths;
};

std::vector<AttentionCase> Cases(const DeviceInfo& device) {
  const Grid grid = device.is_cuda() ? Grid{16384,
                                            2048,
                                            {64, 80, 96, 128},
                                            {1024, 2048, 4096, 8192, 16384}}
                                     : Grid{256, 128, {64, 80}, {64, 128}};
  std::vector<AttentionCase> cases;
  for (const int64_t d : grid.head_dims) {
    for (const int64_t n : grid.lengths) {
      for (const MaskKind mask : {MaskKind::kCausal, MaskKind::kFull}) {
        cases.push_back({.batch = grid.tokens / n,
                         .heads = grid.width / d,
                         .length = n,
                         .head_dim = d,
                         .mask = mask,
                         .deterministic = absl::GetFlag(FLAGS_deterministic)});
      }
    }
  }
  return cases;
}

void RegisterAll(const Bench& bench) {
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const AttentionCase& shape : Cases(bench.device)) {
      if (CheckMeasurable(*backend, ProblemOf(shape, bench.device)).ok()) {
        Register(bench, *backend, shape, AttentionPass::kForward);
        Register(bench, *backend, shape, AttentionPass::kBackward);
      }
    }
  }
}

absl::Status ChooseReference(Bench* bench) {
  const std::string name = absl::GetFlag(FLAGS_reference);
  absl::string_view kernel = name;
  if (!absl::ConsumePrefix(&kernel, "TORCH_") ||
      !absl::c_linear_search(kKernels, kernel)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--reference=", name, ": must be one of TORCH_",
                     absl::StrJoin(kKernels, ", TORCH_")));
  }
  bench->reference = FindBackend(name);
  bench->ratio = absl::GetFlag(FLAGS_deterministic)
                     ? "default/ours"
                     : absl::StrCat(absl::AsciiStrToLower(kernel), "/ours");
  return absl::OkStatus();
}

absl::Status RunAll() {
  Bench bench;
  ASSIGN_OR_RETURN(bench.device, OpenBenchDevice());
  ASSIGN_OR_RETURN(bench.gemm_tflops, MeasureGemmTflops(bench.device));
  RETURN_IF_ERROR(ChooseReference(&bench));
  benchmark::AddCustomContext("build", BuildSummary());
  benchmark::AddCustomContext("device", bench.device.name);
  benchmark::AddCustomContext("BF16 GEMM, TFLOP/s",
                              absl::StrCat(bench.gemm_tflops));
  RegisterAll(bench);
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times every attention backend: attention_bench "
                "[--benchmark_filter=REGEX] [--deterministic]",
       .version = tessera::BuildSummary()},
      tessera::RunAll);
}
