// Times one attention backend on one cell at a time, for
// bench/compare_attention.py, which compares it with PyTorch's. Reads cells
// from standard input, a JSON object per line,
//
//   {"backend": "FLASH_CUDA", "precision": "BF16", "mask": "causal",
//    "batch": 4, "heads": 16, "length": 4096, "head_dim": 128}
//
// and answers each with one line of JSON; the first line describes the device
// and build. Holds no tensors between cells.

#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/attention_measurement.h"
#include "framework/base/status_macros.h"
#include "framework/observe/format.h"
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"

ABSL_FLAG(bool, deterministic, false,
          "equal inputs give bitwise equal gradients");

namespace tessera {
namespace {

using nlohmann::json;

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
  ASSIGN_OR_RETURN(shape.mask, ParseMask(mask));
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

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "reads attention cells from standard input, a JSON object per "
                "line, and prints a line of JSON for each; see "
                "bench/compare_attention.py",
       .version = tessera::BuildSummary()},
      tessera::Serve);
}
