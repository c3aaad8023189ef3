#ifndef FRAMEWORK_DIST_RENDEZVOUS_H_
#define FRAMEWORK_DIST_RENDEZVOUS_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/dist/world.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Two connections to the key-value store of a run. A connection to torchrun's
// store carries one request at a time, and the heartbeat must not queue behind
// a waiting rank.
struct RunStores {
  c10::intrusive_ptr<c10d::Store> control;
  c10::intrusive_ptr<c10d::Store> heartbeat;
};

// Rank 0 serves the store, unless an agent already does, for processes that
// know the run's secret, at the master address and on no other interface. All
// ranks connect and wait for each other. Without a secret, rank 0 warns if
// other machines can connect. In a run of several machines, a master address
// that resolves only to this machine's loopback interface means all interfaces.
//
// Returns within `timeout` plus a second, whatever else listens or connects.
// Errors:
//   DeadlineExceeded     names who is missing, or what is at the address
//                        instead of rank 0
//   InvalidArgument      two processes claim the same rank, or ranks disagree
//                        on the world size or the secret
//   FailedPrecondition   rank 0 cannot listen at the master address
absl::StatusOr<RunStores> MeetAllRanks(const WorldInfo& world,
                                       absl::Duration timeout);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_RENDEZVOUS_H_
