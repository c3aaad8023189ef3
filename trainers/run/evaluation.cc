#include "trainers/run/evaluation.h"

#include <ATen/ATen.h>

#include <string>

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
    ASSIGN_OR_RETURN(const Batch batch, loader.Load(first, windows));
    RETURN_IF_ERROR(step.Forward(batch));
    RETURN_IF_ERROR(StatusFromTorch([&] {
      // Weighted by tokens, because the last batch is partly padding.
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

void WarnOfShortData(const Session& session) {
  const RunConfig& config = session.plan().config;
  const TrainingConfig& training = config.training();
  const DataSource& train = *session.data().train;
  const int64_t window = train.context_length() + 1;
  if (train.windows() < training.batch_size()) {
    LogWarning(absl::StrCat(
        "the ", train.description(), ", has ", train.windows(),
        " sequences of model.context_length ", train.context_length(),
        ", but training.batch_size is ", training.batch_size(),
        ": every step repeats some of them; train on more tokens or lower "
        "training.batch_size"));
  }
  const DataSource* const validation = session.data().validation.get();
  const bool evaluates =
      training.eval_batches() > 0 && (training.has_eval_every_steps() ||
                                      config.data().validation_fraction() > 0);
  if (!evaluates || (validation != nullptr && validation->tokens() >= window)) {
    return;
  }
  const std::string what =
      validation == nullptr
          ? absl::StrCat(
                "no evaluation: no validation data is held out from the ",
                train.description(), ", with data.validation_fraction ",
                config.data().validation_fraction())
          : absl::StrCat("evaluation on less than one sequence: the ",
                         validation->description());
  LogWarning(absl::StrCat(
      what, "; a sequence needs model.context_length + 1 = ", window,
      " tokens. Raise data.validation_fraction (for a prepared folder: "
      "--validation_fraction of trainers:prepare_data), set "
      "data.token_files.validation, or set training.eval_batches=0"));
}

}  // namespace tessera
