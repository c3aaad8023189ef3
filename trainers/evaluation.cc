#include "trainers/evaluation.h"

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {

absl::StatusOr<EvaluationResult> Evaluate(TrainStep& step,
                                          const BatchLoader& loader,
                                          ProcessGroup& group,
                                          int64_t windows) {
  EvaluationResult result;
  at::Tensor loss_sum;
  for (int64_t first = 0; first < windows; first += loader.global_batch()) {
    ASSIGN_OR_RETURN(const StepBatch batch, loader.Load(first, windows));
    RETURN_IF_ERROR(step.Forward(batch));
    RETURN_IF_ERROR(StatusFromTorch([&] {
      // Weighted by its tokens: the last batch is partly padding.
      const at::Tensor part = step.metrics().loss.to(at::kDouble) *
                              static_cast<double>(batch.valid_targets);
      loss_sum = loss_sum.defined() ? loss_sum + part : part;
    }));
    result.tokens += batch.valid_targets;
  }
  RETURN_IF_ERROR(group.AllReduceSum(loss_sum));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    result.loss = loss_sum.item<double>() / static_cast<double>(result.tokens);
  }));
  return result;
}

void WarnWhereNothingIsHeldOut(const Session& session) {
  const TrainingConfig& training = session.plan().config.training();
  if (session.validation_loader() != nullptr ||
      !training.has_eval_every_steps() || training.eval_batches() == 0) {
    return;
  }
  LogWarning(absl::StrCat(
      "no evaluation: training.eval_every_steps is ",
      training.eval_every_steps(), ", but nothing is held out beside the ",
      session.data().train->description(),
      "; raise data.validation_fraction, for a prepared folder "
      "--validation_fraction of trainers:prepare_data, or give "
      "data.token_files.validation"));
}

}  // namespace tessera
