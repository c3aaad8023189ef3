#include "framework/observe/flops.h"

#include <array>

namespace tessera {
namespace {

struct Peak {
  absl::string_view device_name;
  double fp32, tf32, half;  // TFLOP/s, dense
};

// NVIDIA's data sheets for the A100, H100 and H200, where tensor-core figures
// "with sparsity" are twice these. A GPU enters with its exact runtime name and
// a figure from its data sheet.
constexpr std::array<Peak, 7> kPeaks = {{
    {"NVIDIA A100-SXM4-40GB", 19.5, 156, 312},
    {"NVIDIA A100-SXM4-80GB", 19.5, 156, 312},
    {"NVIDIA A100-PCIE-40GB", 19.5, 156, 312},
    {"NVIDIA A100 80GB PCIe", 19.5, 156, 312},
    {"NVIDIA H100 80GB HBM3", 67, 494, 989},  // SXM
    {"NVIDIA H100 PCIe", 51, 378, 756},
    {"NVIDIA H200", 67, 494, 989},  // SXM
}};

}  // namespace

double TrainingFlopsPerToken(const FlopsShape& shape) {
  const int64_t multiplied =
      shape.parameters - (shape.tied_head ? 0 : shape.embedding_parameters);
  const double passes = 6.0 * static_cast<double>(shape.layers) -
                        4.0 * static_cast<double>(shape.forward_only_layers);
  const double attention = passes * static_cast<double>(shape.attention_width) *
                           static_cast<double>(shape.context);
  return 6.0 * static_cast<double>(multiplied) -
         2.0 * static_cast<double>(shape.frozen) -
         2.0 * static_cast<double>(shape.without_input_gradient) + attention;
}

std::optional<double> PeakTflops(absl::string_view device_name,
                                 ProductKind kind) {
  for (const Peak& peak : kPeaks) {
    if (peak.device_name != device_name) continue;
    switch (kind) {
      case ProductKind::kFp32:
        return peak.fp32;
      case ProductKind::kTf32:
        return peak.tf32;
      case ProductKind::kHalf:
        return peak.half;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
