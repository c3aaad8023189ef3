#include "framework/cuda/device_spec.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// From NVIDIA's data sheets and white papers, whose tensor-core figures "with
// sparsity" are twice these. Half precision accumulates in FP32, for which the
// tensor cores of GeForce cards have half of their FP16 rate. Names are exactly
// those of the CUDA runtime. It reports up to 1 % more or less memory with
// another driver, and 6 % less on RTX cards with ECC.
constexpr DeviceSpec kSpecs[] = {
    {"A100_40GB", "NVIDIA A100-SXM4-40GB", 80, 108, 39.4, 19.5, 156, 312, 1555},
    {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 79.1, 19.5, 156, 312, 2039},
    {"A100_PCIE_40GB", "NVIDIA A100-PCIE-40GB", 80, 108, 39.4, 19.5, 156, 312,
     1555},
    {"A100_PCIE", "NVIDIA A100 80GB PCIe", 80, 108, 79.1, 19.5, 156, 312, 1935},
    {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 79.1, 67, 494, 989, 3350},
    {"H100_PCIE", "NVIDIA H100 PCIe", 90, 114, 79.1, 51, 378, 756, 2039},
    {"H100_NVL", "NVIDIA H100 NVL", 90, 132, 93.0, 60, 417.5, 835.5, 3900},
    {"H200", "NVIDIA H200", 90, 132, 139.8, 67, 494, 989, 4800},
    {"B200", "NVIDIA B200", 100, 148, 178.3, 75, 1100, 2250, 7700},
    {"A10G", "NVIDIA A10G", 86, 80, 22.0, 31.5, 35, 70, 600},
    {"L4", "NVIDIA L4", 89, 58, 22.0, 30.3, 60, 121, 300},
    {"L40S", "NVIDIA L40S", 89, 142, 44.4, 91.6, 183, 362, 864},
    {"A6000", "NVIDIA RTX A6000", 86, 84, 47.5, 38.7, 77.4, 154.8, 768},
    {"6000_ADA", "NVIDIA RTX 6000 Ada Generation", 89, 142, 47.4, 91.1, 182.1,
     364.2, 960},
    {"3090", "NVIDIA GeForce RTX 3090", 86, 82, 23.7, 35.6, 35.6, 71, 936},
    {"4090", "NVIDIA GeForce RTX 4090", 89, 128, 23.6, 82.6, 82.6, 165.2, 1008},
    {"5090", "NVIDIA GeForce RTX 5090", 120, 170, 31.4, 104.8, 104.8, 209.5,
     1792},
};

// FLOPs of an SM in a clock, dense; NVIDIA's white papers on the A100, the H100
// and GA102. 0: not listed.
double FlopsPerClock(const DeviceSpec& spec, ProductKind kind) {
  const auto by_kind = [kind](double fp32, double tf32, double half) {
    return kind == ProductKind::kHalf   ? half
           : kind == ProductKind::kTf32 ? tf32
                                        : fp32;
  };
  switch (spec.compute_capability) {
    case 80:
      return by_kind(128, 1024, 2048);
    case 90:
      return by_kind(256, 2048, 4096);
    case 100:
      return by_kind(256, 4096, 8192);
    case 86:
    case 89:
    case 120:
      // Professional cards have twice the tensor-core rate of GeForce cards
      // with the same SM.
      return 256 * std::round(spec.tflops(kind) / spec.fp32);
    default:
      return 0;
  }
}

// The part of a short name that tells cards apart: "A10040" for "a100-40gb",
// "4090" for "RTX 4090", "H100" for "H100_80GB".
std::string Normalized(absl::string_view short_name) {
  std::string letters;
  for (const char c : short_name) {
    if (absl::ascii_isalnum(c)) letters += absl::ascii_toupper(c);
  }
  absl::string_view name = letters;
  absl::ConsumePrefix(&name, "RTX");
  absl::ConsumeSuffix(&name, "GB");
  absl::ConsumeSuffix(&name, "80");
  return std::string(name);
}

}  // namespace

double DeviceSpec::tflops(ProductKind kind) const {
  return kind == ProductKind::kHalf   ? half
         : kind == ProductKind::kTf32 ? tf32
                                      : fp32;
}

std::optional<double> DeviceSpec::peak_mhz(ProductKind kind) const {
  const double per_clock = FlopsPerClock(*this, kind);
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
  std::vector<std::string> names;
  for (const DeviceSpec& spec : kSpecs) {
    if (Normalized(spec.short_name) != Normalized(short_name)) {
      names.emplace_back(spec.short_name);
      continue;
    }
    DeviceInfo info;
    info.device = c10::Device(c10::kCUDA, 0);
    info.name = std::string(spec.name);
    info.compute_capability = spec.compute_capability;
    info.multiprocessors = spec.multiprocessors;
    info.total_bytes = static_cast<int64_t>(spec.memory_gib * 0x1p30);
    info.free_bytes = info.total_bytes;
    return info;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown GPU '", short_name,
                                                 "'; must be one of ",
                                                 absl::StrJoin(names, ", ")));
}

}  // namespace tessera
