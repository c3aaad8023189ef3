#include "framework/dist/rendezvous.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/dist/tcp.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace tessera {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

std::string Address(const WorldInfo& world) {
  return absl::StrCat(world.master_addr, ":", world.master_port);
}

bool Serves(const WorldInfo& world) {
  return world.rank == 0 && !world.agent_store;
}

absl::Status NoStore(const WorldInfo& world, absl::Duration timeout,
                     absl::string_view reason) {
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", world.rank, " of ", world.world_size, " awaited rank 0 at ",
      Address(world), " for ", absl::FormatDuration(timeout), ": ", reason));
}

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> Connect(
    const WorldInfo& world, bool serve, absl::Duration timeout) {
  const bool loopback = IsLoopback(world.master_addr);
  const std::string host = loopback ? "127.0.0.1" : world.master_addr;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.isServer = serve;
  options.waitWorkers = false;  // MeetAllRanks can say who is missing
  options.timeout = absl::ToChronoMilliseconds(timeout);
  if (!serve) {
    // LibTorch would try, with a stack trace each time, for three times as long
    // as it is told.
    const absl::Status listening =
        AwaitListener(host, world.master_port, absl::Now() + timeout);
    if (!listening.ok()) return NoStore(world, timeout, listening.message());
  } else if (loopback) {
    // LibTorch's own server listens on every interface; a run on one machine
    // has no business there. The store takes the socket over.
    ASSIGN_OR_RETURN(options.masterListenFd,
                     ListenOnLoopback(world.master_port));
  }
  c10::intrusive_ptr<c10d::Store> store;
  const absl::Status connected = StatusFromTorch([&] {
    store = c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat("tessera/attempt_", world.restart_count),
        c10::make_intrusive<c10d::TCPStore>(host, options));
  });
  if (connected.ok()) return store;
  return NoStore(world, timeout, connected.message());
}

std::string SizeKey(int rank) { return absl::StrCat("world_size/", rank); }

absl::Status ClaimRank(c10d::Store& store, const WorldInfo& world) {
  if (store.add(absl::StrCat("claims/", world.rank), 1) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("two processes claim rank ", world.rank, " of the run at ",
                     Address(world), "; give each its own RANK"));
  }
  store.set(SizeKey(world.rank), absl::StrCat(world.world_size));
  return absl::OkStatus();
}

absl::Status CheckSameSize(c10d::Store& store, const WorldInfo& world,
                           int peer) {
  const std::string size = store.get_to_str(SizeKey(peer));
  if (size == absl::StrCat(world.world_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", peer, " has world size ", size, ", rank ", world.rank, " has ",
      world.world_size, "; give every rank the same WORLD_SIZE"));
}

std::string StartHint(const WorldInfo& world) {
  if (world.source == "slurm") {
    return "start every task of the job with srun";
  }
  return absl::StrCat("start all ", world.world_size,
                      " ranks, or correct WORLD_SIZE");
}

// The ranks among `missing` that have still not arrived; each that has is
// checked.
absl::StatusOr<std::vector<int>> StillMissing(c10d::Store& store,
                                              const WorldInfo& world,
                                              const std::vector<int>& missing) {
  std::vector<int> still;
  for (const int peer : missing) {
    if (store.check({SizeKey(peer)})) {
      RETURN_IF_ERROR(CheckSameSize(store, world, peer));
    } else {
      still.push_back(peer);
    }
  }
  return still;
}

absl::Status AwaitPeers(c10d::Store& store, const WorldInfo& world,
                        absl::Time deadline, absl::Duration timeout) {
  std::vector<int> missing;
  for (int peer = 0; peer < world.world_size; ++peer) missing.push_back(peer);
  while (true) {
    ASSIGN_OR_RETURN(missing, StillMissing(store, world, missing));
    if (missing.empty()) return absl::OkStatus();
    if (absl::Now() >= deadline) break;
    absl::SleepFor(kPollInterval);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", world.rank, " of ", world.world_size, " awaited ",
                   RankList(missing), " at ", Address(world), " for ",
                   absl::FormatDuration(timeout), "; ", StartHint(world)));
}

}  // namespace

absl::StatusOr<RunStores> MeetAllRanks(const WorldInfo& world,
                                       absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  RunStores stores;
  ASSIGN_OR_RETURN(stores.control, Connect(world, Serves(world), timeout));
  ASSIGN_OR_RETURN(stores.heartbeat, Connect(world, /*serve=*/false, timeout));
  absl::Status met = StatusFromTorchOr([&]() -> absl::Status {
    RETURN_IF_ERROR(ClaimRank(*stores.control, world));
    return AwaitPeers(*stores.control, world, deadline, timeout);
  });
  if (absl::IsInternal(met)) {
    return absl::UnavailableError(
        absl::StrCat("rank ", world.rank, " of ", world.world_size,
                     " awaited the other ranks and lost rank 0 at ",
                     Address(world), ", which has ended: ", met.message()));
  }
  RETURN_IF_ERROR(met);
  return stores;
}

std::string RankList(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 16;
  const size_t named = std::min(ranks.size(), kMostNamed);
  std::string list =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                   absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "));
  if (named < ranks.size()) {
    absl::StrAppend(&list, " and ", ranks.size() - named, " more");
  }
  return list;
}

}  // namespace tessera
