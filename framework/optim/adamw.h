#ifndef FRAMEWORK_OPTIM_ADAMW_H_
#define FRAMEWORK_OPTIM_ADAMW_H_

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/optim/adamw_math.h"
#include "framework/optim/adamw_update.h"
#include "framework/optim/parameter_groups.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"

namespace tessera {

// What changes from step to step: tensors of one element on the store's device,
// so that nothing waits for the host and a CUDA graph replays the step.
struct StepControl {
  at::Tensor lr;          // FP32
  at::Tensor grad_scale;  // FP32, multiplies the gradient; undefined: 1
  at::Tensor skip;        // bool; undefined: never skips
};

// AdamW (adamw_math.h) over the trainable part of a ParameterStore: reads the
// gradient, and in the same pass writes master, moments and shadow. On a GPU
// one launch over the flat buffer, which moves 28 bytes per parameter with FP32
// state and either FP32 weights or a 2-byte shadow and gradient, 30 with a
// shadow and FP32 gradient.
//
// Moments have the policy's optimizer-state dtype. Under BF16_PURE all state is
// BF16, computed in FP32 and rounded to nearest: an update below 2^-9 of its
// weight is lost, which is that mode's known price.
class AdamW {
 public:
  // Allocates the moments, zero. InvalidArgument where the groups do not fit
  // the store (parameter_groups.h); ResourceExhausted out of memory.
  // `store` must outlive the optimizer.
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(
      const AdamWOptions& options, absl::Span<const ParameterGroup> groups,
      ParameterStore& store, const PrecisionPolicy& policy);

  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // One step from store.grad(). Where *skip is set, no byte of master, shadow,
  // moments and step count changes.
  absl::Status Step(const StepControl& control);

  int64_t state_bytes() const;

  // For checkpoints, which copy into them in place. The moments cover
  // store.grad(), element by element.
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  const at::Tensor& step() const { return step_; }  // int64 [1]: steps taken

 private:
  AdamW(ParameterStore& store, const AdamWOptions& options)
      : store_(store), options_(options) {}
  AdamWBuffers Buffers() const;
  absl::Status StepOnCpu(const AdamWBuffers& buffers,
                         const AdamWScalars& scalars) const;

  ParameterStore& store_;
  AdamWOptions options_;
  at::Tensor exp_avg_, exp_avg_sq_, step_;
  at::Tensor chunk_groups_;  // uint8; undefined without groups
  at::Tensor prepared_;      // FP32 scratch: an AdamWStep
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_H_
