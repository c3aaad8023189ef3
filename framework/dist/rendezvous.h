#ifndef FRAMEWORK_DIST_RENDEZVOUS_H_
#define FRAMEWORK_DIST_RENDEZVOUS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/dist/world.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// The key-value store of a run, twice: a connection to torchrun's store carries
// one request at a time, and the heartbeat must not queue behind a rank that
// waits.
struct RunStores {
  c10::intrusive_ptr<c10d::Store> control;
  c10::intrusive_ptr<c10d::Store> heartbeat;
};

// Rank 0 serves the store at the master address and on no other interface
// (unless an agent serves it already), to those who know the run's secret; all
// ranks connect and wait for each other. Without a secret rank 0 warns if other
// machines can connect. A master address that is a name of this machine's
// loopback interface only, in a run of several machines, means all interfaces.
//
// Returns within `timeout` plus a second, whoever else listens or connects.
// DeadlineExceeded names who is missing, or what is at the address instead of
// rank 0. InvalidArgument when two processes claim one rank, or ranks disagree
// on the world's size or the secret. FailedPrecondition when rank 0 cannot
// listen at the master address.
absl::StatusOr<RunStores> MeetAllRanks(const WorldInfo& world,
                                       absl::Duration timeout);

// "rank 3", "ranks 1, 2"; after 16 of them "and 48 more".
std::string RankList(const std::vector<int>& ranks);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_RENDEZVOUS_H_
