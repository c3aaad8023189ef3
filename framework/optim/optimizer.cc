#include "framework/optim/optimizer.h"

#include "framework/base/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const AdamWOptions& adamw, absl::Span<const ParameterGroup> groups,
    const MuonOptions& muon, ParameterStore& store,
    const PrecisionPolicy& policy) {
  ASSIGN_OR_RETURN(std::unique_ptr<AdamW> created,
                   AdamW::Create(adamw, groups, store, policy));
  std::unique_ptr<Optimizer> optimizer(
      new Optimizer(store, std::move(created)));
  if (store.adamw_extent() < store.trainable_extent()) {
    ASSIGN_OR_RETURN(optimizer->muon_,
                     Muon::Create(muon, store, policy, *optimizer->adamw_));
  }
  return optimizer;
}

absl::Status Optimizer::StartEma(const EmaOptions& options) {
  ASSIGN_OR_RETURN(ema_, Ema::Create(options, store_, *adamw_));
  return absl::OkStatus();
}

absl::Status Optimizer::Update(int64_t begin, int64_t end) {
  RETURN_IF_ERROR(end <= store_.adamw_extent() ? adamw_->Update(begin, end)
                                               : muon_->Update(begin, end));
  return ema_ == nullptr ? absl::OkStatus() : ema_->Update(begin, end);
}

}  // namespace tessera
