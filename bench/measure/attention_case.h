#ifndef BENCH_MEASURE_ATTENTION_CASE_H_
#define BENCH_MEASURE_ATTENTION_CASE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"
#include "framework/cuda/device.h"

namespace tessera {

// The self-attention of one layer, which is timed.
struct AttentionCase {
  int64_t batch = 1, heads = 1, length = 1, head_dim = 1;
  at::ScalarType dtype = at::kBFloat16;
  bool tf32 = false;  // FP32 multiplied in TF32
  MaskSpec mask = MaskSpec::Causal();
  bool deterministic = false;
};

// The GPU with this index, or the CPU if there is none. Sets LibTorch's
// process-wide switches as training does (no TF32, sums of products in FP32).
absl::StatusOr<DeviceInfo> OpenBenchDevice(int index = 0);

AttentionProblem ProblemOf(const AttentionCase& shape,
                           const DeviceInfo& device);

// FLASH_TILED launches a dozen kernels for each pair of tiles: beyond this
// length it would take as long as all other backends together.
inline constexpr int64_t kMaxTiledLength = 4096;

// OK, or Unimplemented with the reason why this cell is not measured: the
// backend does not support it, or FLASH_TILED would exceed kMaxTiledLength.
absl::Status CheckMeasurable(const AttentionBackend& backend,
                             const AttentionProblem& problem);

// The dtype "BF16", "FP16" or "FP32"; absent for other names.
std::optional<at::ScalarType> DtypeNamed(absl::string_view name);

// Sets dtype and tf32 by "BF16", "FP16", "TF32" or "FP32"; InvalidArgument for
// other names.
absl::Status ParsePrecision(absl::string_view name, AttentionCase* shape);
// "causal", "full", "window_512" (MaskSpec::Window()); InvalidArgument for
// other names.
absl::StatusOr<MaskSpec> ParseMask(absl::string_view name);
std::string MaskName(MaskSpec mask);

enum class AttentionPass { kForward, kBackward };

// TFLOP/s of the forward pass's two products, 4 B H S T D operations times
// VisibleShare(). The backward pass has five products, 2.5 times as many.
// Recomputation is not counted.
double AttentionTflops(const AttentionCase& shape, AttentionPass pass,
                       double ms);

// Bytes that any backend that saves only O and L has to read and write: forward
// Q, K, V -> O, L; backward Q, K, V, O, dO, L -> dQ, dK, dV.
double CompulsoryBytes(const AttentionCase& shape, AttentionPass pass);

}  // namespace tessera

#endif  // BENCH_MEASURE_ATTENTION_CASE_H_
