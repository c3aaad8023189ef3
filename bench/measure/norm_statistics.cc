#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/measure/cell_measurement.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

// Over the last dimension, in the dtype of `x`, with a weight of 1.
at::Tensor Norm(const at::Tensor& x, NormStatisticsStudy::Norm norm) {
  constexpr double kEpsilon = 1e-5;
  const auto mean = [](const at::Tensor& t) {
    return t.mean(at::IntArrayRef({-1}), /*keepdim=*/true);
  };
  const at::Tensor centred =
      norm == NormStatisticsStudy::LAYER ? x - mean(x) : x;
  return centred * at::rsqrt(mean(centred.square()) + kEpsilon);
}

double RootMeanSquare(const at::Tensor& t) {
  return t.square().mean().sqrt().item<double>();
}

}  // namespace

FigureNames NormStatisticsFigures(const Study& /*study*/) {
  return {{"rms_error", "max_error", "rounding_error"}};
}

CellFigures MeasureNormStatistics(const OpenedCell& opened) {
  const auto& cell = std::get<NormStatisticsStudy>(opened.config);
  if (cell.rows() < 1 || cell.width() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows and width must be >= 1; are ", cell.rows(), " and ",
                     cell.width()));
  }
  nlohmann::ordered_json figures;
  const absl::Status status = StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    at::manual_seed(1);
    const at::Tensor x = at::randn({cell.rows(), cell.width()})
                             .add(cell.mean())
                             .to(at::kBFloat16);
    const at::ScalarType dtype = ScalarTypeOf(cell.statistics());
    const at::Tensor exact = Norm(x.to(at::kDouble), cell.norm());
    const auto error_of = [&](const at::Tensor& y) {
      return y.to(at::kBFloat16).to(at::kDouble) - exact;
    };
    const at::Tensor error = error_of(Norm(x.to(dtype), cell.norm()));
    const double scale = exact.std(/*unbiased=*/false).item<double>();
    figures["rms_error"] = RootMeanSquare(error) / scale;
    figures["max_error"] = error.abs().max().item<double>() / scale;
    figures["rounding_error"] = RootMeanSquare(error_of(exact)) / scale;
  });
  if (!status.ok()) return status;
  return figures;
}

}  // namespace tessera
