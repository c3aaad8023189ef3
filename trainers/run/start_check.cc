#include "trainers/run/start_check.h"

#include <optional>

#include "framework/base/field_error.h"
#include "framework/base/status_macros.h"
#include "trainers/run/run_identity.h"
#include "trainers/run/session.h"
#include "trainers/run/training_state.h"

namespace tessera {
namespace {

absl::Status CheckInitialWeights(const Checkpoint& checkpoint,
                                 const ModelConfig& model,
                                 const StateLayout& layout) {
  RETURN_IF_ERROR(CheckSameHeads(checkpoint, model));
  return CheckRestoreParameters(checkpoint, layout);
}

}  // namespace

absl::Status CheckStart(const RunPlan& plan, const RunFolder& folder,
                        const Dataset* data) {
  const WeightDtypes dtypes = WeightDtypesOf(plan.precision);
  ASSIGN_OR_RETURN(const ParameterLayout placed,
                   PlaceParameters(plan.parameters, dtypes));
  const StateLayout layout = {.parameters = placed.slices,
                              .master = dtypes.master,
                              .has_scaler = plan.precision.scales_loss()};
  const ModelConfig& model = plan.config.model();
  if (folder.init_from != nullptr) {
    const absl::Status status =
        CheckInitialWeights(*folder.init_from, model, layout);
    return status.ok() ? status : FieldError(kInitFrom, status);
  }
  if (folder.resume_from == nullptr) return absl::OkStatus();
  const Checkpoint& checkpoint = *folder.resume_from;
  RETURN_IF_ERROR(CheckSameStep(checkpoint));
  RETURN_IF_ERROR(CheckSameModel(checkpoint, model));
  if (data != nullptr) {
    RETURN_IF_ERROR(CheckSameData(checkpoint, plan.config, *data));
  }
  RETURN_IF_ERROR(SamplesOf(checkpoint).status());
  return CheckRestore(checkpoint, layout);
}

absl::Status CheckCanStart(const RunPlan& plan, const std::string& out,
                           absl::string_view resume) {
  ASSIGN_OR_RETURN(RunFolder folder,
                   OpenRunFolder(out, resume, /*writes=*/false));
  RETURN_IF_ERROR(OpenInitialWeights(plan.config.checkpoint(), &folder));
  std::optional<Dataset> data;
  if (!plan.config.data().has_default_text()) {
    ASSIGN_OR_RETURN(data, OpenDataset(plan, /*progress=*/nullptr));
  }
  return CheckStart(plan, folder, data.has_value() ? &*data : nullptr);
}

}  // namespace tessera
