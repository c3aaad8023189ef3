#include "trainers/run/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/ops/cross_entropy/cross_entropy.h"

namespace tessera {

namespace {

// The bytes of text of the targets that count.
double TextBytes(const Batch& batch, const at::Tensor& bytes_of_token) {
  const at::Tensor& targets = batch.targets_mbs;
  const at::Tensor bytes = bytes_of_token.take(targets.clamp_min(0));
  return at::where(targets == kIgnoredTarget, 0.0, bytes).sum().item<double>();
}

}  // namespace

absl::StatusOr<EvaluationResult> Evaluate(TrainStep& step,
                                          const BatchLoader& loader,
                                          ProcessGroup& group, int64_t windows,
                                          const at::Tensor& bytes_of_token) {
  EvaluationResult result;
  at::Tensor sums;  // of nats, and of bytes if they are known
  double text_bytes = 0;
  for (int64_t first = 0; first < windows; first += loader.global_batch()) {
    ASSIGN_OR_RETURN(const Batch batch, loader.Load(first, windows));
    RETURN_IF_ERROR(step.Forward(batch));
    RETURN_IF_ERROR(StatusFromTorch([&] {
      // Weighted by tokens, because the last batch is partly padding.
      const at::Tensor part = step.metrics().loss.to(at::kDouble).reshape({1}) *
                              static_cast<double>(batch.valid_targets);
      sums = sums.defined() ? sums + part : part;
      if (bytes_of_token.defined()) {
        text_bytes += TextBytes(batch, bytes_of_token);
      }
    }));
    result.tokens += batch.valid_targets;
  }
  RETURN_IF_ERROR(StatusFromTorch([&] {
    if (!bytes_of_token.defined()) return;
    sums = at::cat({sums, at::full({1}, text_bytes, sums.options())});
  }));
  RETURN_IF_ERROR(group.AllReduceSum(sums));
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const double nats = sums[0].item<double>();
    result.loss = nats / static_cast<double>(result.tokens);
    if (!bytes_of_token.defined()) return;
    if (const double bytes = sums[1].item<double>(); bytes > 0) {
      result.bits_per_byte = nats / std::log(2.0) / bytes;
    }
  }));
  return result;
}

absl::StatusOr<at::Tensor> BytesOfTokens(const Tokenizer& tokenizer,
                                         int64_t vocab) {
  std::vector<double> bytes(vocab);
  const int64_t known = std::min(vocab, tokenizer.vocab_size());
  for (int64_t token = 0; token < known; ++token) {
    const absl::StatusOr<std::string> text =
        tokenizer.Decode({static_cast<int32_t>(token)});
    // A vocabulary may leave ids out.
    if (absl::IsOutOfRange(text.status())) continue;
    RETURN_IF_ERROR(text.status());
    bytes[token] = static_cast<double>(text->size());
  }
  for (const int32_t token : tokenizer.begin_ids()) {
    if (token < vocab) bytes[token] = 0;
  }
  return at::tensor(bytes, at::kDouble);
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
  for (const Dataset::ValidationSet& set : session.data().validation_sets) {
    if (!evaluates || set.source->tokens() >= window) continue;
    LogWarning(absl::StrCat(
        "evaluation on less than one sequence: the ", set.source->description(),
        "; a sequence needs model.context_length + 1 = ", window, " tokens"));
  }
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
