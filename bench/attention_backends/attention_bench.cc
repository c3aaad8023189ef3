// Google Benchmark of the attention backends, each compared with cuDNN's fused
// attention or another of LibTorch's kernels:
//
//   bazel run --config=cuda //bench/attention_backends:attention_bench --
//       --benchmark_filter='FLASH_CUDA/.*/d128/n4096/causal'
//
// The cells have 16,384 tokens and a width of about 2,048. A cell is one
// benchmark iteration whose time is the median of its samples. Without a GPU
// the cells are small enough for a CPU.
//
// With --serve it times one backend on one cell at a time, for
// bench/compare_attention.py, which compares it with PyTorch's. It reads cells
// from standard input, a JSON object per line,
//
//   {"backend": "FLASH_CUDA", "precision": "BF16", "mask": "causal",
//    "batch": 4, "heads": 16, "length": 4096, "head_dim": 128}
//
// and answers each with one line of JSON; the first line describes the device
// and build. It holds no tensors between cells.

#include <iostream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
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
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"

ABSL_FLAG(bool, serve, false, "time the cells given on standard input");
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

using nlohmann::json;

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
      shape.head_dim, "/n", shape.length, "/", MaskName(shape));
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
      for (const MaskSpec mask : {MaskSpec::Causal(), MaskSpec::Full()}) {
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

absl::StatusOr<std::string> Word(const json& cell, const char* key) {
  if (!cell.contains(key) || !cell[key].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cell needs \"", key, "\", a string: ", cell.dump()));
  }
  return cell[key].get<std::string>();
}

absl::StatusOr<int64_t> Size(const json& cell, const char* key) {
  if (!cell.contains(key) || !cell[key].is_number_integer() ||
      cell[key].get<int64_t>() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a cell needs \"", key, "\", a whole number >= 1: ", cell.dump()));
  }
  return cell[key].get<int64_t>();
}

absl::StatusOr<AttentionCase> ParseCase(const json& cell) {
  AttentionCase shape;
  ASSIGN_OR_RETURN(shape.batch, Size(cell, "batch"));
  ASSIGN_OR_RETURN(shape.heads, Size(cell, "heads"));
  ASSIGN_OR_RETURN(shape.length, Size(cell, "length"));
  ASSIGN_OR_RETURN(shape.head_dim, Size(cell, "head_dim"));
  ASSIGN_OR_RETURN(const std::string precision, Word(cell, "precision"));
  RETURN_IF_ERROR(ParsePrecision(precision, &shape));
  ASSIGN_OR_RETURN(const std::string mask, Word(cell, "mask"));
  RETURN_IF_ERROR(ParseMask(mask, &shape));
  shape.deterministic = absl::GetFlag(FLAGS_deterministic);
  return shape;
}

absl::Status MeasureCell(const DeviceInfo& device, json* cell) {
  if (!cell->is_object()) {
    return absl::InvalidArgumentError(
        "a cell must be a JSON object on one line");
  }
  ASSIGN_OR_RETURN(const std::string name, Word(*cell, "backend"));
  ASSIGN_OR_RETURN(const AttentionCase shape, ParseCase(*cell));
  const AttentionBackend* const backend = FindBackend(name);
  if (backend == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(name, " is not part of this build"));
  }
  ASSIGN_OR_RETURN(const AttentionMeasurement measured,
                   MeasureAttention(*backend, shape, device, {}));
  auto tflops = [&](AttentionPass pass, const PassMeasurement& timed) {
    return AttentionTflops(shape, pass, timed.ms.median);
  };
  cell->update({
      {"forward_ms", ToJson(measured.forward->ms)},
      {"backward_ms", ToJson(measured.backward->ms)},
      {"forward_tflops", tflops(AttentionPass::kForward, *measured.forward)},
      {"backward_tflops", tflops(AttentionPass::kBackward, *measured.backward)},
      {"saved_mib", measured.saved_bytes / kMebibyte},
      {"peak_mib", measured.peak_bytes / kMebibyte},
  });
  return absl::OkStatus();
}

absl::Status Serve() {
  ASSIGN_OR_RETURN(const DeviceInfo device, OpenBenchDevice());
  std::cout << json{{"device", device.name}, {"build", BuildSummary()}}.dump()
            << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    json cell = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const absl::Status status = MeasureCell(device, &cell);
    if (!cell.is_object()) cell = json::object();
    cell["status"] = status.ok()                         ? "OK"
                     : absl::IsResourceExhausted(status) ? "OOM"
                                                         : status.message();
    std::cout << cell.dump() << std::endl;
    // After a CUDA error, nothing works in this process.
    if (absl::IsInternal(status)) return status;
  }
  return absl::OkStatus();
}

absl::Status RunAll() {
  if (absl::GetFlag(FLAGS_serve)) return Serve();
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
                "[--benchmark_filter=REGEX] [--deterministic], or "
                "those on standard input: attention_bench --serve",
       .version = tessera::BuildSummary()},
      tessera::RunAll);
}
