// Times attention at batch 8 with one head and no mask over head dims and
// lengths, and prints a Markdown table: the grid on which attention written in
// plain PyTorch is usually shown to run out of memory.
//
//   bazel run --config=cuda //bench/attention_backends:seed_grid
//
// A cell that does not run has a row with the reason. Without a GPU the lengths
// are small enough for a CPU.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention_backends/backend_table.h"
#include "framework/base/status_macros.h"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"
#include "trainers/studies/attention_case.h"
#include "trainers/studies/attention_measurement.h"

ABSL_FLAG(std::vector<std::string>, backends,
          std::vector<std::string>({"NAIVE", "COMPILED_FUSED", "FLASH_CUDA",
                                    "FLASH_TILED"}),
          "names, as in docs/attention_backends.md");
ABSL_FLAG(std::vector<std::string>, precisions,
          std::vector<std::string>({"FP32", "BF16"}), "FP32, BF16, FP16");
ABSL_FLAG(std::vector<std::string>, head_dims,
          std::vector<std::string>({"16", "32", "64", "128"}), "");
ABSL_FLAG(std::vector<std::string>, lengths, {},
          "sequence lengths; empty for 256 to 65536 on a GPU, 64 to 256 on a "
          "CPU");

namespace tessera {
namespace {

constexpr int64_t kBatch = 8;
constexpr int64_t kHeads = 1;

absl::StatusOr<std::vector<int64_t>> ParseNumbers(
    const std::vector<std::string>& words) {
  std::vector<int64_t> numbers(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleAtoi(words[i], &numbers[i]) || numbers[i] < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", words[i],
          "' is not a length or head dim; use whole numbers >= 1"));
    }
  }
  return numbers;
}

absl::StatusOr<std::vector<int64_t>> Lengths(const DeviceInfo& device) {
  const std::vector<std::string> given = absl::GetFlag(FLAGS_lengths);
  if (!given.empty()) return ParseNumbers(given);
  if (!device.is_cuda()) return std::vector<int64_t>{64, 256};
  return std::vector<int64_t>{256, 1024, 4096, 8192, 16384, 32768, 65536};
}

std::string Figures(const AttentionCase& shape,
                    const AttentionMeasurement& measured) {
  auto tflops = [&](AttentionPass pass, const PassMeasurement& timed) {
    return AttentionTflops(shape, pass, timed.ms.median);
  };
  return absl::StrFormat(
      "%.4f | %.1f | %.4f | %.1f | %.1f | %.1f", measured.forward->ms.median,
      tflops(AttentionPass::kForward, *measured.forward),
      measured.backward->ms.median,
      tflops(AttentionPass::kBackward, *measured.backward),
      measured.saved_bytes / kMebibyte, measured.peak_bytes / kMebibyte);
}

// The last six columns of a cell's row.
std::string FiguresOrReason(const std::string& name, const AttentionCase& shape,
                            const DeviceInfo& device) {
  constexpr char kNoFigures[] = " | | | | |";
  const AttentionBackend* const backend = FindBackend(name);
  if (backend == nullptr) {
    return absl::StrCat("not part of this build", kNoFigures);
  }
  const absl::StatusOr<AttentionMeasurement> measured =
      MeasureAttention(*backend, shape, device, MeasureOptions());
  if (measured.ok()) return Figures(shape, *measured);
  if (absl::IsResourceExhausted(measured.status())) {
    return absl::StrCat("out of memory", kNoFigures);
  }
  return absl::StrCat(measured.status().message(), kNoFigures);
}

void PrintRow(const std::string& backend, const AttentionCase& shape,
              const DeviceInfo& device) {
  absl::PrintF("| %d | %d | %s | %s | %s |\n", shape.head_dim, shape.length,
               PrecisionName(shape.dtype), backend,
               FiguresOrReason(backend, shape, device));
  std::fflush(stdout);
}

// The grid without its backends, in the order of the rows.
absl::StatusOr<std::vector<AttentionCase>> Cases(const DeviceInfo& device) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, Lengths(device));
  ASSIGN_OR_RETURN(const std::vector<int64_t> head_dims,
                   ParseNumbers(absl::GetFlag(FLAGS_head_dims)));
  std::vector<AttentionCase> cases;
  for (const int64_t d : head_dims) {
    for (const int64_t n : lengths) {
      for (const std::string& precision : absl::GetFlag(FLAGS_precisions)) {
        ASSIGN_OR_RETURN(const at::ScalarType dtype, ParsePrecision(precision));
        cases.push_back({.batch = kBatch,
                         .heads = kHeads,
                         .length = n,
                         .head_dim = d,
                         .dtype = dtype,
                         .mask = MaskKind::kFull});
      }
    }
  }
  return cases;
}

absl::Status Run() {
  ASSIGN_OR_RETURN(const DeviceInfo device, OpenBenchDevice());
  ASSIGN_OR_RETURN(const std::vector<AttentionCase> cases, Cases(device));
  absl::PrintF(
      "%s, %s. Batch %d, %d head, no mask; medians.\n\n"
      "| head dim | length | precision | backend | forward, ms | TFLOP/s |"
      " backward, ms | TFLOP/s | saved, MiB | peak, MiB |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n",
      device.name, BuildSummary(), kBatch, kHeads);
  for (const AttentionCase& shape : cases) {
    for (const std::string& backend : absl::GetFlag(FLAGS_backends)) {
      PrintRow(backend, shape, device);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times attention at batch 8 with one head: seed_grid "
                "[--backends=NAME,...] [--head_dims=N,...] [--lengths=N,...]",
       .version = tessera::BuildSummary()},
      tessera::Run);
}
