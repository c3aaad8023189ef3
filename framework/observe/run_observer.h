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

// Is told what happens in a run, on the thread that trains: the console, the
// run log and TensorBoard are such observers. Events that an observer does not
// override pass it by. An error ends the run, except in OnTrainEnd() after
// another error.
//
// What happens inside a step is a PhaseObserver's (phase_observer.h).
class RunObserver {
 public:
  virtual ~RunObserver() = default;

  // Once, before the first step.
  virtual absl::Status OnTrainStart(const RunDescription&) { return {}; }
  // `step` optimizer steps are done; the device may still be at work on them.
  virtual absl::Status OnStepEnd(int64_t /*step*/) { return {}; }
  // Every observe.log_every_steps steps, after OnStepEnd().
  virtual absl::Status OnStepLogged(const StepRecord&) { return {}; }
  virtual absl::Status OnValidationEnd(const EvalRecord&) { return {}; }
  // In the first step of a process, with observe.saved_bytes.
  virtual absl::Status OnSavedBytes(const SavedBytesRecord&) { return {}; }
  // A checkpoint of step `step` is complete in `folder`. On rank 0 only.
  virtual absl::Status OnCheckpointSaved(int64_t /*step*/,
                                         const std::string& /*folder*/) {
    return {};
  }
  // After the last step, on rank 0 only.
  virtual absl::Status OnSample(const SampleRecord&) { return {}; }
  // Once, after the last event: OK, or why training ended before its last step.
  virtual absl::Status OnTrainEnd(const absl::Status& /*result*/) { return {}; }
};

// Tells each of `observers` one event, in order. Stops at the first error,
// which it returns.
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
