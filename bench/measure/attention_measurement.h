#ifndef BENCH_MEASURE_ATTENTION_MEASUREMENT_H_
#define BENCH_MEASURE_ATTENTION_MEASUREMENT_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attention_backends/attention_backend.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/timing.h"
#include "framework/cuda/device.h"

namespace tessera {

struct PassMeasurement {
  Summary ms;
  // The reference's time / ours, of neighbouring calls; above 1 if ours is
  // faster. Absent if there is no reference or it does not support the case.
  std::optional<Summary> reference_ratio;
};

struct AttentionMeasurement {
  std::optional<PassMeasurement> forward, backward;
  // Counted by the allocator; 0 on a CPU, whose allocator does not count.
  int64_t saved_bytes = 0;  // held from forward to backward, O included
  int64_t peak_bytes = 0;   // of one forward and backward, operands included
  // Held only during a pass, in addition to what it leaves.
  int64_t forward_workspace_bytes = 0, backward_workspace_bytes = 0;
  // What else the process has allocated: what libraries keep from their first
  // call on (cuBLAS's workspace, cuDNN's plans).
  int64_t library_bytes = 0;
};

struct MeasureOptions {
  bool forward = true, backward = true;
  // Alternates with the measured backend (ours, reference, ours, ...), so that
  // clock drift and warm-up do not affect the ratio of neighbouring calls.
  // Always runs in its default mode: the reference of a deterministic case may
  // be the backend itself. Any other reference must be one of LibTorch's
  // kernels. It keeps the gradients that its kernel allocates, as PyTorch does,
  // and is not charged for copying them to where ours writes them.
  const AttentionBackend* reference = nullptr;
  // How often each pass is called.
  Repetition repetition = {.iterations = 30, .time_limit = absl::Seconds(2)};
};

// Times `backend` on slices of one fused [B, S, 3 H, D] projection, as in
// training, without autograd around it. Unimplemented if CheckMeasurable()
// fails; ResourceExhausted if the device has too little memory. Frees all
// memory that it used.
absl::StatusOr<AttentionMeasurement> MeasureAttention(
    const AttentionBackend& backend, const AttentionCase& shape,
    const DeviceInfo& device, const MeasureOptions& options);

}  // namespace tessera

#endif  // BENCH_MEASURE_ATTENTION_MEASUREMENT_H_
