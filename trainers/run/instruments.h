#ifndef TRAINERS_RUN_INSTRUMENTS_H_
#define TRAINERS_RUN_INSTRUMENTS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "framework/base/phase_observer.h"
#include "framework/observe/instrument.h"
#include "framework/observe/memory/memory_recorder.h"
#include "framework/observe/memory/snapshot_writer.h"
#include "framework/observe/observe_config.pb.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/session.h"

namespace tessera {

// The instruments that a config turns on, for one process of a run. Created
// before the session, which reports its phases to them.
class Instruments {
 public:
  // `folder`: the run's, for what instruments write beside its log.
  Instruments(const RunPlan& plan, const std::string& folder);
  Instruments(const Instruments&) = delete;
  Instruments& operator=(const Instruments&) = delete;

  // Null if no instrument follows the phases.
  PhaseObserver* phases() { return phases_.has_value() ? &*phases_ : nullptr; }
  const std::vector<std::unique_ptr<Instrument>>& all() const {
    return instruments_;
  }

  // Tells the instruments what the session's buffers hold.
  void SetSession(Session& session);

  // An error of training, with the snapshot of the GPU's memory named if it ran
  // out of memory and one was written.
  absl::Status NameSnapshot(const absl::Status& status) const;

 private:
  void AddSnapshotWriter(const RunPlan& plan);

  std::unique_ptr<PhaseObserver> nvtx_;
  std::vector<std::unique_ptr<Instrument>> instruments_;
  // Of instruments_; null unless turned on.
  MemoryRecorder* memory_ = nullptr;
  SnapshotWriter* snapshots_ = nullptr;
  std::optional<PhaseObserverList> phases_;
};

// Tells `memory` what each of the session's buffers holds.
void NameBuffers(Session& session, MemoryRecorder* memory);

}  // namespace tessera

#endif  // TRAINERS_RUN_INSTRUMENTS_H_
