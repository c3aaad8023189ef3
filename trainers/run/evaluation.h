#ifndef TRAINERS_RUN_EVALUATION_H_
#define TRAINERS_RUN_EVALUATION_H_

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "framework/data/tokenize/tokenizer.h"
#include "framework/dist/process_group.h"
#include "trainers/run/batch_loader.h"
#include "trainers/run/session.h"
#include "trainers/run/train_step.h"

namespace tessera {

struct EvaluationResult {
  double loss = 0;     // cross entropy, mean nats per token
  int64_t tokens = 0;  // number of tokens in the mean
  // The loss per byte of text, in bits; absent without `bytes_of_token`.
  std::optional<double> bits_per_byte;
};

// Returns the mean loss over the first `windows` windows of the loader's
// source, in order, over all ranks. Does not change gradients or parameters.
// Waits for the device.
//   bytes_of_token: BytesOfTokens(), or undefined
absl::StatusOr<EvaluationResult> Evaluate(
    TrainStep& step, const BatchLoader& loader, ProcessGroup& group,
    int64_t windows, const at::Tensor& bytes_of_token = {});

// The number of bytes of text that each token stands for, FP64 [vocab] on the
// CPU; 0 for ids that the tokenizer does not have, and for the tokens with
// which prepare_data begins and ends documents: they have a name, but no text.
absl::StatusOr<at::Tensor> BytesOfTokens(const Tokenizer& tokenizer,
                                         int64_t vocab);

// Warns if the training data has fewer sequences than a batch, or if a run that
// evaluates has less than one sequence of validation data.
void WarnOfShortData(const Session& session);

}  // namespace tessera

#endif  // TRAINERS_RUN_EVALUATION_H_
