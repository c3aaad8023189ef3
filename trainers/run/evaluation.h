#ifndef TRAINERS_RUN_EVALUATION_H_
#define TRAINERS_RUN_EVALUATION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "framework/dist/process_group.h"
#include "trainers/run/batch_loader.h"
#include "trainers/run/session.h"
#include "trainers/run/train_step.h"

namespace tessera {

struct EvaluationResult {
  double loss = 0;     // cross entropy, mean nats per token
  int64_t tokens = 0;  // number of tokens in the mean
};

// Returns the mean loss over the first `windows` windows of the loader's
// source, in order, over all ranks. Does not change gradients or parameters.
// Waits for the device.
absl::StatusOr<EvaluationResult> Evaluate(TrainStep& step,
                                          const BatchLoader& loader,
                                          ProcessGroup& group, int64_t windows);

// Warns if the training data has fewer sequences than a batch, or if a run that
// evaluates has less than one sequence of validation data.
void WarnOfShortData(const Session& session);

}  // namespace tessera

#endif  // TRAINERS_RUN_EVALUATION_H_
