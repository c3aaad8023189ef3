#ifndef FRAMEWORK_OBSERVE_RUN_OBSERVER_H_
#define FRAMEWORK_OBSERVE_RUN_OBSERVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "framework/base/status_macros.h"
#include "framework/observe/run_description.h"
#include "framework/observe/step_record.h"

namespace tessera {

// Receives the events of a run, on the thread that trains. The console, the run
// log and TensorBoard are observers. An observer overrides the events it wants.
// A returned error ends the run, except from OnTrainEnd() after another error.
//
// For the phases inside a step see PhaseObserver (phase_observer.h).
class RunObserver {
 public:
  virtual ~RunObserver() = default;

  // Called once, before the first step.
  virtual absl::Status OnTrainStart(const RunDescription&) { return {}; }
  // Called when `step` optimizer steps were launched; the device may still be
  // working on them.
  virtual absl::Status OnStepEnd(int64_t /*step*/) { return {}; }
  // Called every observe.log_every_steps steps, after OnStepEnd().
  virtual absl::Status OnStepLogged(const StepRecord&) { return {}; }
  virtual absl::Status OnValidationEnd(const EvalRecord&) { return {}; }
  // Called in the first step of a process, with observe.saved_bytes.
  virtual absl::Status OnSavedBytes(const SavedBytesRecord&) { return {}; }
  // Called on rank 0 when a checkpoint is complete, which may be some steps
  // after its own.
  virtual absl::Status OnCheckpointSaved(const CheckpointRecord&) { return {}; }
  // Called on rank 0 after the last step.
  virtual absl::Status OnSample(const SampleRecord&) { return {}; }
  // Called once, after all other events. `result` is OK, or the reason why
  // training ended early.
  virtual absl::Status OnTrainEnd(const absl::Status& /*result*/) { return {}; }
};

// Sends one event to each of `observers`, in order. Stops at the first error
// and returns it.
template <typename... Parameters, typename... Arguments>
absl::Status Notify(const std::vector<RunObserver*>& observers,
                    absl::Status (RunObserver::*event)(Parameters...),
                    const Arguments&... arguments) {
  for (RunObserver* observer : observers) {
    RETURN_IF_ERROR((observer->*event)(arguments...));
  }
  return absl::OkStatus();
}

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_RUN_OBSERVER_H_
