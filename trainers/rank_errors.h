#ifndef TRAINERS_RANK_ERRORS_H_
#define TRAINERS_RANK_ERRORS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "framework/dist/world.h"

namespace tessera {

// For an error that every rank of a machine finds when it starts, because it
// follows from the arguments and files alone: local rank 0 reports it, the
// others do not repeat it.
//
// Returns `status` on local rank 0. Any other rank first waits, so that its end
// is not the reason to end local rank 0 before that has spoken. A launcher that
// sees local rank 0 fail ends the others by SIGTERM: then this returns the
// status as QuietStatus(). If no signal comes within `wait`, local rank 0 may
// not have failed, and this rank reports the error itself.
absl::Status ReportOncePerMachine(absl::Status status, const WorldInfo& world,
                                  absl::Duration wait = absl::Seconds(5));

}  // namespace tessera

#endif  // TRAINERS_RANK_ERRORS_H_
