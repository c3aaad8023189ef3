#include <algorithm>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/attention_config.h"
#include "attention_backends/select_backend.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/attention_measurement.h"
#include "bench/measure/cell_measurement.h"
#include "bench/measure/training_cell.h"
#include "framework/base/status_macros.h"
#include "framework/observe/format.h"
#include "framework/program/value.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

AttentionCase CaseOf(const AttentionCell& cell, int64_t length) {
  return {.batch = cell.batch(),
          .heads = cell.heads(),
          .length = length,
          .head_dim = cell.head_dim(),
          .dtype = *DtypeNamed(AttentionCell::Precision_Name(cell.precision())),
          .mask = cell.causal() ? MaskSpec::Causal() : MaskSpec::Full()};
}

// What one layer's attention keeps and works in, by the backend's formulas.
struct PlannedBytes {
  int64_t qkv = 0, gradients = 0, o = 0, lse = 0, saved = 0;
  int64_t forward_workspace = 0, backward_workspace = 0;

  int64_t held() const { return o + lse + saved; }
  int64_t peak() const {
    return qkv + gradients + held() +
           std::max(forward_workspace, backward_workspace);
  }
};

PlannedBytes PlanOf(const AttentionBackend& backend, const AttentionCase& shape,
                    const DeviceInfo& device) {
  const AttentionMemory memory = backend.Plan(ProblemOf(shape, device));
  const int64_t element = c10::elementSize(shape.dtype);
  PlannedBytes bytes;
  bytes.o = shape.batch * shape.length * shape.heads * shape.head_dim * element;
  bytes.qkv = 3 * bytes.o;
  // Of Q, K and V, and that of O, which the backward pass is given.
  bytes.gradients = 4 * bytes.o;
  bytes.lse = memory.lse.has_value() ? memory.lse->bytes() : 0;
  for (const TensorType& saved : memory.saved) bytes.saved += saved.bytes();
  bytes.forward_workspace = memory.forward_bytes;
  bytes.backward_workspace = memory.backward_bytes;
  return bytes;
}

// The largest multiple of `step` up to `limit`, one itself, for which `fits`,
// which holds for every shorter one, too; 0 if there is none. Begins at
// `guess`, where a good one leaves little to search.
absl::StatusOr<int64_t> LargestLength(
    int64_t step, int64_t limit, int64_t guess,
    const std::function<absl::StatusOr<bool>(int64_t)>& fits) {
  int64_t low = 0, high = limit + step;  // fits; does not
  int64_t next = std::clamp(guess / step * step, step, limit);
  bool up = true;  // from the guess
  for (int64_t stride = step; high - low > step; stride *= 2) {
    ASSIGN_OR_RETURN(const bool fit, fits(next));
    (fit ? low : high) = next;
    if (stride == step) up = fit;
    next = up ? low + stride : high - stride;
    if (next <= low || next >= high) {
      next = (low + high) / 2 / step * step;
    }
  }
  return low;
}

absl::StatusOr<Json> FindLargestLength(const AttentionBackend& backend,
                                       const AttentionCell& cell,
                                       const DeviceInfo& device) {
  const int64_t step = cell.search_step();
  const int64_t limit = cell.search_limit() / step * step;
  MeasureOptions options;
  options.forward = options.backward = false;
  const auto runs = [&](int64_t length) -> absl::StatusOr<bool> {
    const absl::Status status =
        MeasureAttention(backend, CaseOf(cell, length), device, options)
            .status();
    if (absl::IsResourceExhausted(status)) return false;
    RETURN_IF_ERROR(status);
    return true;
  };
  const int64_t available =
      device.free_bytes + CurrentMemory(device.device).reserved;
  const auto predicted = [&](int64_t length) -> absl::StatusOr<bool> {
    return PlanOf(backend, CaseOf(cell, length), device).peak() <= available;
  };
  ASSIGN_OR_RETURN(const int64_t planned,
                   LargestLength(step, limit, limit / 2, predicted));
  ASSIGN_OR_RETURN(const int64_t found,
                   LargestLength(step, limit, planned, runs));
  Json figures = {{"largest_length", found}, {"predicted_length", planned}};
  // The search ends between two neighbours, of which it has run both.
  if (found < limit) figures["out_of_memory_at"] = found + step;
  if (found > 0 && found < limit) {
    figures["error_pct"] = 100.0 * (planned - found) / found;
  }
  return figures;
}

// `counted`: whether the device's allocator counts.
Json FiguresOf(const AttentionCase& shape, const PlannedBytes& planned,
               const AttentionMeasurement& measured, bool counted) {
  const auto mib = [](int64_t bytes) {
    return static_cast<double>(bytes) / kMebibyte;
  };
  Json figures = {
      {"forward_ms", ToJson(measured.forward->ms)},
      {"backward_ms", ToJson(measured.backward->ms)},
      {"forward_tflops", AttentionTflops(shape, AttentionPass::kForward,
                                         measured.forward->ms.median)},
      {"backward_tflops", AttentionTflops(shape, AttentionPass::kBackward,
                                          measured.backward->ms.median)},
      {"planned_held_mib", mib(planned.held())},
      {"score_tensors",
       static_cast<double>(planned.saved) /
           (static_cast<double>(shape.batch) * shape.heads * shape.length *
            shape.length * c10::elementSize(shape.dtype))},
      {"tensors_mib",
       {{"qkv", mib(planned.qkv)},
        {"gradients", mib(planned.gradients)},
        {"o", mib(planned.o)},
        {"lse", mib(planned.lse)},
        {"saved", mib(planned.saved)},
        {"forward_workspace", mib(planned.forward_workspace)},
        {"backward_workspace", mib(planned.backward_workspace)}}}};
  if (counted) {
    figures["held_mib"] = mib(measured.saved_bytes);
    figures["peak_mib"] = mib(measured.peak_bytes);
    figures["measured_mib"] = {
        {"forward_workspace", mib(measured.forward_workspace_bytes)},
        {"backward_workspace", mib(measured.backward_workspace_bytes)},
        {"library", mib(measured.library_bytes)}};
  }
  return figures;
}

}  // namespace

FigureNames AttentionFigures(const Study& /*study*/) {
  return {{"forward_ms", "backward_ms", "forward_tflops", "backward_tflops",
           "held_mib", "peak_mib", "planned_held_mib", "score_tensors",
           "tensors_mib", "measured_mib", "largest_length", "predicted_length",
           "error_pct", "out_of_memory_at"}};
}

CellFigures MeasureAttentionCell(const OpenedCell& opened) {
  const auto& cell = std::get<AttentionCell>(opened.config);
  ASSIGN_OR_RETURN(const DeviceInfo device, OpenBenchDevice());
  const AttentionCase shape = CaseOf(cell, cell.length());
  ASSIGN_OR_RETURN(const BackendChoice choice,
                   SelectBackend(BackendRequestOf(cell.attention()),
                                 ProblemOf(shape, device)));
  const AttentionBackend& backend = *choice.backend;
  if (cell.find_largest_length()) {
    return FindLargestLength(backend, cell, device);
  }
  MeasureOptions options;
  options.repetition = RepetitionOf(opened.study);
  const PlannedBytes planned = PlanOf(backend, shape, device);
  // Would otherwise fail only after the work that still fits.
  if (device.is_cuda() && planned.peak() > device.total_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        backend.name(), " needs at least ", planned.peak() >> 20, " MiB, but ",
        device.name, " has ", device.total_bytes >> 20, " MiB"));
  }
  ASSIGN_OR_RETURN(const AttentionMeasurement measured,
                   MeasureAttention(backend, shape, device, options));
  return FiguresOf(shape, planned, measured, device.is_cuda());
}

}  // namespace tessera
