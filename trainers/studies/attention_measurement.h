#ifndef TRAINERS_STUDIES_ATTENTION_MEASUREMENT_H_
#define TRAINERS_STUDIES_ATTENTION_MEASUREMENT_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attention_backends/attention_backend.h"
#include "framework/cuda/device.h"
#include "trainers/studies/attention_case.h"

namespace tessera {

// Of many samples: the median, the 10th and the 90th percentile.
struct Distribution {
  double median = 0, low = 0, high = 0;
};

struct PassMeasurement {
  Distribution ms;
  // The reference's time / ours, of neighbouring calls; above 1 where ours is
  // faster. Absent without a reference that supports the case.
  std::optional<Distribution> reference_ratio;
};

struct AttentionMeasurement {
  std::optional<PassMeasurement> forward, backward;
  // As the allocator counts; 0 on a CPU, whose allocator does not.
  int64_t saved_bytes = 0;  // held from forward to backward, O included
  int64_t peak_bytes = 0;   // of one forward and backward, operands included
};

struct MeasureOptions {
  bool forward = true, backward = true;
  // Runs in alternation with the backend measured: ours, reference, ours, ...
  // A clock drifts and a GPU warms up; the ratio of neighbours does not see it.
  // Always in its default mode: the reference of a deterministic case may be
  // the backend itself. Another one has to be of LibTorch's; it keeps the
  // gradients that its kernel allocates, as PyTorch does, and is not charged
  // for copying them to where ours writes them.
  const AttentionBackend* reference = nullptr;
  int warmup = 3;
  // Samples of a pass: this many, or what fits into the time, at least three.
  int max_samples = 30;
  absl::Duration max_time = absl::Seconds(2);
};

// Times `backend` on slices of one fused [B, S, 3 H, D] projection, as in
// training, without autograd around it. Unimplemented where CheckMeasurable()
// says so; ResourceExhausted where the device has too little memory, of which
// nothing is held afterwards.
absl::StatusOr<AttentionMeasurement> MeasureAttention(
    const AttentionBackend& backend, const AttentionCase& shape,
    const DeviceInfo& device, const MeasureOptions& options);

// What the device reaches in a BF16 product of two square matrices, median of
// 20: 8192 wide on a GPU, 256 on a CPU.
absl::StatusOr<double> MeasureGemmTflops(const DeviceInfo& device);

}  // namespace tessera

#endif  // TRAINERS_STUDIES_ATTENTION_MEASUREMENT_H_
