#ifndef TRAINERS_RANK_ERRORS_H_
#define TRAINERS_RANK_ERRORS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "framework/dist/world.h"

namespace tessera {

// Makes an error appear once if every rank of a machine finds it at the start,
// because it follows from arguments and files: only local rank 0 reports it.
//
// Returns `status` on local rank 0. Other ranks wait first, so that their end
// does not make the launcher end local rank 0 before it has reported. A
// launcher that sees local rank 0 fail ends the others with SIGTERM; they then
// return the status as QuietStatus(). If no signal arrives within `wait`, local
// rank 0 may not have failed, and the rank reports the error itself.
absl::Status ReportOncePerMachine(absl::Status status, const WorldInfo& world,
                                  absl::Duration wait = absl::Seconds(20));

}  // namespace tessera

#endif  // TRAINERS_RANK_ERRORS_H_
