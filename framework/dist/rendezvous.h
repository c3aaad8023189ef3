#ifndef FRAMEWORK_DIST_RENDEZVOUS_H_
#define FRAMEWORK_DIST_RENDEZVOUS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/dist/world.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Two connections to the key-value store of a run. A connection carries one
// request at a time, and the heartbeat must not queue behind a rank that waits.
struct RunStores {
  c10::intrusive_ptr<c10d::Store> control;
  c10::intrusive_ptr<c10d::Store> heartbeat;
};

// Rank 0 serves the store, on 127.0.0.1 alone where that is the master address
// (unless an agent serves it already); all ranks connect and wait for each
// other.
//
// Within `timeout`, or DeadlineExceeded names who is missing. InvalidArgument
// when two processes claim one rank or ranks disagree on the world's size.
absl::StatusOr<RunStores> MeetAllRanks(const WorldInfo& world,
                                       absl::Duration timeout);

// "rank 3", "ranks 1, 2"; after 16 of them "and 48 more".
std::string RankList(const std::vector<int>& ranks);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_RENDEZVOUS_H_
