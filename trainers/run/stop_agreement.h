#ifndef TRAINERS_RUN_STOP_AGREEMENT_H_
#define TRAINERS_RUN_STOP_AGREEMENT_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "framework/dist/process_group.h"

namespace tessera {

// What a run does after a step, as one rank asks or as all have agreed.
struct StopDecision {
  int signo = 0;  // stop because of this signal; 0: do not stop
  bool save = false;
};

// Lets the ranks of a run stop and save after the same step, although a signal
// reaches only some of them and their clocks differ. They ask each other about
// once a second, because asking makes the host wait for its device; a process
// alone decides after every step.
class StopAgreement {
 public:
  using Clock = std::function<absl::Time()>;

  // `steps` steps are done. `group`, whose tensors are on `device`, outlives
  // this.
  StopAgreement(ProcessGroup* group, c10::Device device, int64_t steps,
                Clock clock = absl::Now);

  // Every rank calls it after each step, with the number of steps done and what
  // it asks for itself. Returns the same on every rank: the first of
  // kStopSignals that any rank received, and whether any asks to save; nothing
  // after a step in which they do not ask each other.
  absl::StatusOr<StopDecision> Agree(int64_t steps, const StopDecision& asked);

 private:
  ProcessGroup* const group_;
  const c10::Device device_;
  const Clock clock_;
  int64_t next_ = 0;  // steps after which the ranks ask each other again
  int64_t last_;      // steps after which they last did, or the first
  absl::Time last_at_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_STOP_AGREEMENT_H_
