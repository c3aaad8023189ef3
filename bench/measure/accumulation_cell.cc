#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "bench/measure/cell_measurement.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

// Each addition is LibTorch's own on scalars of these dtypes, which promotes a
// narrower term to the sum's dtype and rounds once.
double Sum(const AccumulationStudy& cell) {
  const at::NoGradGuard no_grad;
  const at::ScalarType dtype = ScalarTypeOf(cell.sum());
  at::Tensor sum = at::zeros({1}, dtype);
  at::Tensor term = at::full({1}, cell.term(), ScalarTypeOf(cell.term_dtype()));
  if (cell.cast_term_to_fp32()) term = term.to(at::kFloat);
  if (!cell.kahan()) {
    for (int i = 0; i < cell.count(); ++i) sum.add_(term);
    return sum.item<double>();
  }
  // Kahan, "Pracniques: Further Remarks on Reducing Truncation Errors", 1965.
  at::Tensor lost = at::zeros({1}, dtype);
  term = term.to(dtype);
  for (int i = 0; i < cell.count(); ++i) {
    const at::Tensor corrected = term - lost;
    const at::Tensor next = sum + corrected;
    lost = (next - sum) - corrected;
    sum = next;
  }
  return sum.item<double>();
}

}  // namespace

FigureNames AccumulationFigures(const Study& /*study*/) {
  return std::vector<absl::string_view>{"value", "error"};
}

CellFigures MeasureAccumulation(const OpenedCell& opened) {
  const auto& cell = std::get<AccumulationStudy>(opened.config);
  nlohmann::ordered_json figures;
  absl::Status status = StatusFromTorch([&] {
    const double value = Sum(cell);
    figures["value"] = value;
    figures["error"] = std::abs(value - cell.term() * cell.count());
  });
  if (!status.ok()) return status;
  return figures;
}

}  // namespace tessera
