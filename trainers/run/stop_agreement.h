#ifndef TRAINERS_RUN_STOP_AGREEMENT_H_
#define TRAINERS_RUN_STOP_AGREEMENT_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "framework/base/monotonic_clock.h"
#include "framework/dist/process_group.h"

namespace tessera {

// What a run does after a step: the request of one rank, or the decision of
// all.
struct StopDecision {
  int signo = 0;  // stop because of this signal; 0: do not stop
  bool save = false;
};

// Makes all ranks of a run stop and save after the same step, although a signal
// reaches only some of them and their clocks differ. The ranks exchange their
// requests about once a second, because an exchange makes the host wait for its
// device. A single process decides after every step.
class StopAgreement {
 public:
  using Clock = std::function<absl::Time()>;

  // `steps` steps are done. `group` uses tensors on `device` and outlives this
  // object.
  StopAgreement(ProcessGroup* group, c10::Device device, int64_t steps,
                Clock clock = MonotonicNow);

  // Every rank calls this after each step, with the number of steps done and
  // its own request. Returns the same on every rank: the first of kStopSignals
  // that any rank received, and whether any rank asks to save. After a step
  // without an exchange the decision is empty.
  absl::StatusOr<StopDecision> Agree(int64_t steps, const StopDecision& asked);

 private:
  ProcessGroup* const group_;
  const c10::Device device_;
  const Clock clock_;
  int64_t next_ = 0;  // steps done at the next exchange
  int64_t last_;      // steps done at the last exchange, or at first
  absl::Time last_at_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_STOP_AGREEMENT_H_
