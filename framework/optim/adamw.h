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

// The inputs that change from step to step, as one-element tensors on the
// store's device, so that nothing waits for the host and a CUDA graph can
// replay the step.
struct StepControl {
  at::Tensor lr;          // FP32
  at::Tensor grad_scale;  // FP32 factor of the gradient; undefined: 1
  at::Tensor skip;        // bool; undefined: never skips
};

// AdamW (adamw_math.h) over its part of a ParameterStore, adamw_extent(). A
// single pass reads the gradient and writes moments and weights, in every form
// in which the store keeps them. On a GPU it is one launch over the flat
// buffer. With FP32 state it moves, per parameter:
//
//   weights            gradient of 2 bytes   of 4 bytes
//   FP32                                26           28
//   two halves                          26           28
//   FP32 and a shadow                   28           30
//
// If ranks divide the state (Sharding), this one's moments are those of its
// parts, and the caller gathers the weights that it has updated.
//
// Moments have the policy's optimizer-state dtype. Under BF16_PURE all state is
// BF16, computed in FP32 and rounded to nearest; updates smaller than 2^-9 of
// their weight are lost, a known limitation of that mode.
class AdamW {
 public:
  // Allocates the moments, zero. InvalidArgument if the groups do not match the
  // store (parameter_groups.h); ResourceExhausted if out of memory. `store`
  // must outlive the optimizer.
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(
      const AdamWOptions& options, absl::Span<const ParameterGroup> groups,
      ParameterStore& store, const PrecisionPolicy& policy);

  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // Takes one step with the gradient in store.grad(). If *skip is set, weights,
  // moments and step count do not change.
  absl::Status Step(const StepControl& control);

  // The parts of Step(), so that weights may change later than step().
  // Prepare() reads `control` and advances step(); then each weight is updated
  // once by Update(begin, end), elements of store.grad() from one multiple of
  // kBlockAlignment to another; if ranks divide the state, in this rank's part
  // of one section. Before the first Prepare() and after Discard(),
  // Update() changes nothing.
  absl::Status Prepare(const StepControl& control);
  absl::Status Update(int64_t begin, int64_t end);
  void Discard();

  int64_t state_bytes() const;

  // For Muon, which has AdamW's groups and control. The pointers are of the
  // store's device and stay valid; Prepare() and Discard() write there.
  int GroupOf(const ParameterSlice& slice) const;  // makes the host wait
  const AdamWCoefficients* coefficients() const;   // by group
  const bool* skips() const { return skips_.const_data_ptr<bool>(); }
  // For a range of Update(), or of Muon's, from `begin` on. Addressed as if
  // ranks divided nothing, in the section of element `begin` of store.grad().
  // The second moments of a section of Muon are those of rows.
  AdamWBuffers Buffers(int64_t begin) const;

  // For checkpoints, which copy into these tensors in place. They lie like
  // store.divisions().moments and second_moments: the first moments of AdamW's
  // part and after them the momentum of Muon's;
  // ParameterStore::second_moments().
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  const at::Tensor& step() const { return step_; }  // int64 [1]: steps taken

 private:
  AdamW(ParameterStore& store, const AdamWOptions& options)
      : store_(store), options_(options) {}

  ParameterStore& store_;
  AdamWOptions options_;
  at::Tensor exp_avg_, exp_avg_sq_, step_;
  at::Tensor chunk_groups_;  // uint8; undefined without groups
  at::Tensor ranges_;        // AdamWRange as bytes; undefined if in order
  // What Prepare() has fixed.
  at::Tensor skips_;     // bool [1]: Update() changes nothing
  at::Tensor prepared_;  // AdamWCoefficients of each group, as FP32
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_H_
