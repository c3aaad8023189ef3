#ifndef TRAINERS_RUN_RUN_OUTPUTS_H_
#define TRAINERS_RUN_RUN_OUTPUTS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/observe/console.h"
#include "framework/observe/run_log.h"
#include "framework/observe/run_observer.h"
#include "framework/observe/tensorboard.h"
#include "nlohmann/json.hpp"
#include "trainers/run/run_folder.h"
#include "trainers/run/session.h"

namespace tessera {

// Where a run's first weights come from.
struct RunOrigin {
  ResumePoint resume;  // step 0 and no checkpoint if not resumed
  // The run log's "init" record; null if the weights are random or resumed.
  nlohmann::ordered_json init;
};

// The outputs of the writing rank: the console, the run log and, unless
// switched off, TensorBoard.
class RunOutputs {
 public:
  // Creates the run's folder if needed, writes its resolved config and creates
  // or extends its files. Warns about data that is too short
  // (WarnOfShortData()).
  static absl::StatusOr<std::unique_ptr<RunOutputs>> Open(
      const Session& session, const RunOrigin& origin, RunFolder* folder);

  // In the order in which they receive events. The console comes first, so that
  // a line is printed before a full disk ends the run.
  std::vector<RunObserver*> observers() const;

  // FailedPrecondition if the run's folder was removed, moved or replaced.
  absl::Status CheckInPlace() const { return log_->CheckInPlace(); }

 private:
  RunOutputs() = default;

  std::unique_ptr<Console> console_;
  std::unique_ptr<TensorboardWriter> tensorboard_;  // null if switched off
  std::unique_ptr<RunLog> log_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_RUN_OUTPUTS_H_
