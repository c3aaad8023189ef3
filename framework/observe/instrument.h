#ifndef FRAMEWORK_OBSERVE_INSTRUMENT_H_
#define FRAMEWORK_OBSERVE_INSTRUMENT_H_

#include "absl/status/status.h"
#include "framework/base/phase_observer.h"
#include "framework/observe/run_observer.h"
#include "framework/observe/step_record.h"

namespace tessera {

// Measures one aspect of a run: time by phase, kernels, memory, power. It
// follows the run's phases, its events, or both, and adds its figures to the
// records that the other observers write. Turned on by a field of
// ObserveConfig; off, it does not exist.
class Instrument : public RunObserver {
 public:
  // Where the run reports its phases; null if the instrument needs none.
  virtual PhaseObserver* phases() { return nullptr; }
  // Adds what was measured since the last record. The device is idle.
  virtual absl::Status AddTo(StepRecord* /*record*/) { return {}; }
  // Whether Collect() has something to do after this step. The run then calls
  // it while its clock stands still; an error ends the run.
  virtual bool IsDue() const { return false; }
  virtual absl::Status Collect() { return {}; }
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_INSTRUMENT_H_
