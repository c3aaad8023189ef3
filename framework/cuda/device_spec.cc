#include "framework/cuda/device_spec.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

// From NVIDIA's data sheets, whose tensor-core figures "with sparsity" are
// twice these. Names are exactly those of the CUDA runtime.
constexpr std::array<DeviceSpec, 7> kSpecs = {{
    {"A100_40GB", "NVIDIA A100-SXM4-40GB", 80, 108, 39.4, 19.5, 156, 312, 1555},
    {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 79.1, 19.5, 156, 312, 2039},
    {"A100_PCIE_40GB", "NVIDIA A100-PCIE-40GB", 80, 108, 39.4, 19.5, 156, 312,
     1555},
    {"A100_PCIE", "NVIDIA A100 80GB PCIe", 80, 108, 79.1, 19.5, 156, 312, 1935},
    {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 79.1, 67, 494, 989, 3350},
    {"H100_PCIE", "NVIDIA H100 PCIe", 90, 114, 79.1, 51, 378, 756, 2039},
    {"H200", "NVIDIA H200", 90, 132, 139.8, 67, 494, 989, 4800},
}};

// FLOPs of an SM in a clock, dense; NVIDIA's white papers on the A100 and the
// H100. 0: not listed.
double FlopsPerClock(int compute_capability, ProductKind kind) {
  const bool hopper = compute_capability == 90;
  if (!hopper && compute_capability != 80) return 0;
  switch (kind) {
    case ProductKind::kFp32:
      return hopper ? 256 : 128;
    case ProductKind::kTf32:
      return hopper ? 2048 : 1024;
    case ProductKind::kHalf:
      return hopper ? 4096 : 2048;
  }
  return 0;
}

}  // namespace

double DeviceSpec::tflops(ProductKind kind) const {
  return kind == ProductKind::kHalf   ? half
         : kind == ProductKind::kTf32 ? tf32
                                      : fp32;
}

std::optional<double> DeviceSpec::peak_mhz(ProductKind kind) const {
  const double per_clock = FlopsPerClock(compute_capability, kind);
  if (per_clock == 0) return std::nullopt;
  return tflops(kind) * 1e6 / (multiprocessors * per_clock);
}

const DeviceSpec* FindDeviceSpec(absl::string_view name) {
  for (const DeviceSpec& spec : kSpecs) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

absl::StatusOr<DeviceInfo> DeviceToPlanFor(absl::string_view short_name) {
  for (const DeviceSpec& spec : kSpecs) {
    if (spec.short_name != short_name) continue;
    DeviceInfo info;
    info.device = c10::Device(c10::kCUDA, 0);
    info.name = std::string(spec.name);
    info.compute_capability = spec.compute_capability;
    info.multiprocessors = spec.multiprocessors;
    info.total_bytes = static_cast<int64_t>(spec.memory_gib * 0x1p30);
    info.free_bytes = info.total_bytes;
    return info;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown GPU '", short_name, "'; must be one of ",
      absl::StrJoin(kSpecs, ", ", [](std::string* out, const DeviceSpec& spec) {
        absl::StrAppend(out, spec.short_name);
      })));
}

}  // namespace tessera
