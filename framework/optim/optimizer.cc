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

}  // namespace tessera
