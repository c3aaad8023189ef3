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
  double loss = 0;     // mean nats per token
  int64_t tokens = 0;  // that it is the mean of
};

// Mean loss over the first `windows` windows of the loader's source, in order,
// on all ranks together. Gradients and parameters stay as they are. Waits for
// the device.
absl::StatusOr<EvaluationResult> Evaluate(TrainStep& step,
                                          const BatchLoader& loader,
                                          ProcessGroup& group, int64_t windows);

// Warns of training data with fewer sequences than a batch, and of held-out
// data too short for one, or none, in a run that evaluates.
void WarnOfShortData(const Session& session);

}  // namespace tessera

#endif  // TRAINERS_RUN_EVALUATION_H_
