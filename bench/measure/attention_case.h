#ifndef BENCH_MEASURE_ATTENTION_CASE_H_
#define BENCH_MEASURE_ATTENTION_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  // Mean length of the documents of which a sequence is packed
  // (DocumentLengths()); 0 if each sequence is one document.
  int64_t mean_document = 0;
  bool deterministic = false;
};

// The GPU with this index, or the CPU if there is none. Sets LibTorch's
// process-wide switches as training does (no TF32, sums of products in FP32).
absl::StatusOr<DeviceInfo> OpenBenchDevice(int index = 0);
// The name of OpenBenchDevice(), which stays closed.
std::string BenchDeviceName();

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
// Sets mask and mean_document by "causal", "full", "window_512"
// (MaskSpec::Window()) or "documents_512" (causal within each document);
// InvalidArgument for other names.
absl::Status ParseMask(absl::string_view name, AttentionCase* shape);
std::string MaskName(const AttentionCase& shape);

// The lengths of the documents of one sequence, which add up to `length`. They
// are uniform in [1, 2 mean - 1], drawn by SplitMix64 with the index `sequence`
// as its seed; the last one is cut. bench/peers/masks.py has the same rule.
std::vector<int64_t> DocumentLengths(int64_t mean, int64_t length,
                                     int64_t sequence);

enum class AttentionPass { kForward, kBackward };

// TFLOP/s of the forward pass's two products, 4 H D operations for each pair of
// a query and a key that it sees: B S T VisibleShare(), or n (n + 1) / 2 in a
// document of n tokens. The backward pass has five products, 2.5 times as many.
// Recomputation is not counted.
double AttentionTflops(const AttentionCase& shape, AttentionPass pass,
                       double ms);

// Bytes that any backend that saves only O and L has to read and write: forward
// Q, K, V -> O, L; backward Q, K, V, O, dO, L -> dQ, dK, dV.
double CompulsoryBytes(const AttentionCase& shape, AttentionPass pass);

}  // namespace tessera

#endif  // BENCH_MEASURE_ATTENTION_CASE_H_
