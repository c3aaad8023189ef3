#ifndef FRAMEWORK_OPTIM_OPTIMIZER_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/optim/adamw.h"
#include "framework/optim/ema.h"
#include "framework/optim/muon.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/precision_policy.h"

namespace tessera {

// The optimizer of a run: AdamW, and Muon for the blocks of the store that are
// marked for it (ParameterBlockSpec::muon), and optionally a moving average of
// the weights.
class Optimizer {
 public:
  // `muon` is used only if the store has blocks for it. `store` must outlive
  // the optimizer. The errors of AdamW::Create().
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      const AdamWOptions& adamw, absl::Span<const ParameterGroup> groups,
      const MuonOptions& muon, ParameterStore& store,
      const PrecisionPolicy& policy);

  // Averages the weights from now on. The errors of Ema::Create().
  absl::Status StartEma(const EmaOptions& options);

  // AdamW's functions. A range of Update() is either AdamW's or Muon's; its
  // average is updated next.
  absl::Status Prepare(const StepControl& control) {
    return adamw_->Prepare(control);
  }
  absl::Status Update(int64_t begin, int64_t end);
  void Discard() { adamw_->Discard(); }
  const at::Tensor& exp_avg() const { return adamw_->exp_avg(); }
  const at::Tensor& exp_avg_sq() const { return adamw_->exp_avg_sq(); }
  const at::Tensor& step() const { return adamw_->step(); }
  Ema* ema() const { return ema_.get(); }  // null without an average

 private:
  Optimizer(ParameterStore& store, std::unique_ptr<AdamW> adamw)
      : store_(store), adamw_(std::move(adamw)) {}

  ParameterStore& store_;
  std::unique_ptr<AdamW> adamw_;
  std::unique_ptr<Muon> muon_;  // null if the store has no block for it
  std::unique_ptr<Ema> ema_;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_H_
