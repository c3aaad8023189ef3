#include "bench/measure/attention_case.h"

#include <ATen/Context.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "framework/base/status_macros.h"
#include "framework/precision/precision_policy.h"
#include "framework/program/value.h"

namespace tessera {
namespace {

constexpr absl::string_view kWindowPrefix = "window_";

}  // namespace

absl::StatusOr<DeviceInfo> OpenBenchDevice(int index) {
  DeviceInfo device = CpuDevice();
  if (at::hasCUDA()) {
    ASSIGN_OR_RETURN(device, OpenCudaDevice(index));
  }
  PrecisionPolicy(PrecisionMode::kFp32).ApplyToLibTorch();
  return device;
}

AttentionProblem ProblemOf(const AttentionCase& shape,
                           const DeviceInfo& device) {
  return {.b = shape.batch,
          .s = shape.length,
          .t = shape.length,
          .h = shape.heads,
          .g = shape.heads,
          .d = shape.head_dim,
          .dtype = shape.dtype,
          .tf32 = shape.tf32,
          .mask = shape.mask,
          .needs_grad = true,
          .deterministic = shape.deterministic,
          .cuda = device.is_cuda(),
          .compute_capability = device.compute_capability};
}

absl::Status CheckMeasurable(const AttentionBackend& backend,
                             const AttentionProblem& problem) {
  if (backend.name() == "FLASH_TILED" && problem.s > kMaxTiledLength) {
    return absl::UnimplementedError(
        absl::StrCat("not measured beyond length ", kMaxTiledLength));
  }
  return backend.Supports(problem);
}

std::optional<at::ScalarType> DtypeNamed(absl::string_view name) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    if (DtypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

absl::Status ParsePrecision(absl::string_view name, AttentionCase* shape) {
  shape->tf32 = name == "TF32";
  const auto dtype = DtypeNamed(shape->tf32 ? "FP32" : name);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision is '", name, "'; it must be BF16, FP16, TF32 or FP32"));
  }
  shape->dtype = *dtype;
  return absl::OkStatus();
}

absl::StatusOr<MaskSpec> ParseMask(absl::string_view name) {
  for (MaskSpec mask : {MaskSpec::Causal(), MaskSpec::Full()}) {
    if (MaskName(mask) == name) return mask;
  }
  absl::string_view tokens = name;
  int64_t window = 0;
  if (absl::ConsumePrefix(&tokens, kWindowPrefix) &&
      absl::SimpleAtoi(tokens, &window) && window > 0) {
    return MaskSpec::Window(window);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("mask is '", name,
                   "'; it must be causal, full or, for a window of 512 tokens, "
                   "window_512"));
}

std::string MaskName(MaskSpec mask) {
  if (mask.is_window()) return absl::StrCat(kWindowPrefix, mask.before + 1);
  return mask == MaskSpec::Causal() ? "causal" : "full";
}

double AttentionTflops(const AttentionCase& shape, AttentionPass pass,
                       double ms) {
  const double forward = 4.0 * shape.batch * shape.heads * shape.length *
                         shape.length * shape.head_dim *
                         VisibleShare(ProblemOf(shape, CpuDevice()));
  const double flops =
      pass == AttentionPass::kForward ? forward : 2.5 * forward;
  return flops / ms * 1e-9;
}

double CompulsoryBytes(const AttentionCase& shape, AttentionPass pass) {
  const double rows = 1.0 * shape.batch * shape.heads * shape.length;
  const double operand = rows * shape.head_dim * c10::elementSize(shape.dtype);
  const int operands = pass == AttentionPass::kForward ? 4 : 8;
  return operands * operand + rows * sizeof(float);
}

}  // namespace tessera
