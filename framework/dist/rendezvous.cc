#include "framework/dist/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/dist/rank_list.h"
#include "framework/dist/run_store.h"
#include "framework/dist/store_client.h"
#include "framework/dist/store_server.h"
#include "framework/dist/tcp.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace tessera {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

// Extra time after the timeout, within which waits with their own limit end and
// give a better reason.
constexpr absl::Duration kLatestEnd = absl::Seconds(1);

using Store = c10::intrusive_ptr<c10d::Store>;

std::string Address(const WorldInfo& world) {
  return HostAndPort(world.master_addr, world.master_port);
}

absl::Status NoStore(const WorldInfo& world, absl::Duration timeout,
                     absl::string_view reason) {
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", world.rank, " of ", world.world_size, " waited for rank 0 at ",
      Address(world), " for ", absl::FormatDuration(timeout), ": ", reason));
}

// Connects to the store of torchrun's agent.
absl::StatusOr<Store> ConnectToAgent(const WorldInfo& world,
                                     absl::Duration timeout) {
  const std::string host =
      IsLoopback(world.master_addr) ? "127.0.0.1" : world.master_addr;
  // LibTorch would retry for three times its timeout, with a stack trace each
  // time.
  const absl::Status listening =
      AwaitListener(host, world.master_port, MonotonicNow() + timeout);
  if (!listening.ok()) return NoStore(world, timeout, listening.message());
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.waitWorkers = false;  // AwaitPeers() reports who is missing
  // MeetAllRanks() gives up earlier, without LibTorch's stack trace.
  options.timeout = absl::ToChronoMilliseconds(timeout + absl::Minutes(1));
  Store store;
  const absl::Status connected = StatusFromTorch(
      [&] { store = c10::make_intrusive<c10d::TCPStore>(host, options); });
  if (connected.ok()) return store;
  return NoStore(world, timeout,
                 absl::StrCat("what answers there is not torchrun's store (",
                              connected.message(), ")"));
}

absl::StatusOr<std::vector<Socket>> Listen(const WorldInfo& world) {
  ASSIGN_OR_RETURN(std::vector<Socket> listeners,
                   ListenAt(world.master_addr, world.master_port));
  const bool local =
      std::all_of(listeners.begin(), listeners.end(), ListensOnLoopback);
  const bool one_machine = world.local_world_size == world.world_size;
  if (!local || one_machine || IsLoopback(world.master_addr)) return listeners;
  // Debian maps a machine's own name to 127.0.1.1; other machines resolve it to
  // another address.
  listeners.clear();
  ASSIGN_OR_RETURN(Socket everywhere, ListenEverywhere(world.master_port));
  listeners.push_back(std::move(everywhere));
  return listeners;
}

void WarnUnlessProtected(const WorldInfo& world,
                         const std::vector<Socket>& listeners) {
  if (!world.secret.empty()) return;
  for (const Socket& listener : listeners) {
    if (ListensOnLoopback(listener)) continue;
    LogWarning(absl::StrCat(
        "any machine that reaches ", LocalAddress(listener),
        " can join or end this run; to refuse strangers, set TESSERA_SECRET to "
        "the same random text for every rank (openssl rand -hex 16)"));
    return;
  }
}

void WarnThatAgentIgnoresSecret(const WorldInfo& world) {
  if (world.rank != 0 || world.secret.empty()) return;
  LogWarning(absl::StrCat(
      "TESSERA_SECRET does not protect the store at ", Address(world),
      ", which torchrun's agent serves; to let rank 0 serve it, set "
      "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun"));
}

absl::StatusOr<std::shared_ptr<StoreServer>> Serve(const WorldInfo& world) {
  ASSIGN_OR_RETURN(std::vector<Socket> listeners, Listen(world));
  WarnUnlessProtected(world, listeners);
  return std::make_shared<StoreServer>(std::move(listeners), world.secret);
}

absl::StatusOr<std::shared_ptr<StoreClient>> Join(const WorldInfo& world,
                                                  absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<StoreClient>> client =
      StoreClient::Connect(world.master_addr, world.master_port, world.secret,
                           MonotonicNow() + timeout);
  if (client.ok()) return std::shared_ptr<StoreClient>(*std::move(client));
  const absl::string_view reason = client.status().message();
  if (!absl::IsInvalidArgument(client.status())) {
    return NoStore(world, timeout, reason);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", world.rank, " of ", world.world_size,
                   " cannot join the run at ", Address(world), ": ", reason));
}

// The connection to the store of this run. Rank 0 serves the store.
struct Connection {
  Store control, heartbeat;
  std::shared_ptr<StoreServer> server;  // on rank 0
};

absl::StatusOr<Connection> Connect(const WorldInfo& world,
                                   absl::Duration timeout) {
  Connection connection;
  if (world.agent_store) {
    WarnThatAgentIgnoresSecret(world);
    ASSIGN_OR_RETURN(connection.control, ConnectToAgent(world, timeout));
    ASSIGN_OR_RETURN(connection.heartbeat, ConnectToAgent(world, timeout));
    return connection;
  }
  StoreCall call;
  if (world.rank == 0) {
    ASSIGN_OR_RETURN(connection.server, Serve(world));
    call = [server = connection.server](const Fields& request, absl::Duration) {
      return server->Call(request);
    };
  } else {
    ASSIGN_OR_RETURN(const std::shared_ptr<StoreClient> client,
                     Join(world, timeout));
    call = [client](const Fields& request, absl::Duration limit) {
      return client->Call(request, limit);
    };
  }
  connection.control = MakeRunStore(call);
  connection.heartbeat = MakeRunStore(call);
  return connection;
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

// The ranks among `missing` that have not arrived yet. Checks each rank that
// has.
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

absl::Status AwaitPeers(const Connection& connection, const WorldInfo& world,
                        absl::Time deadline, absl::Duration timeout) {
  c10d::Store& store = *connection.control;
  std::vector<int> missing;
  for (int peer = 0; peer < world.world_size; ++peer) missing.push_back(peer);
  while (true) {
    ASSIGN_OR_RETURN(missing, StillMissing(store, world, missing));
    if (missing.empty()) return absl::OkStatus();
    if (MonotonicNow() >= deadline) break;
    absl::SleepFor(kPollInterval);
  }
  std::string error = absl::StrCat(
      "rank ", world.rank, " of ", world.world_size, " waited for ",
      RankList(missing), " at ", Address(world), " for ",
      absl::FormatDuration(timeout), "; ", StartHint(world));
  const std::string refusals =
      connection.server == nullptr ? "" : connection.server->Refusals();
  if (!refusals.empty()) absl::StrAppend(&error, "; ", refusals);
  return absl::DeadlineExceededError(error);
}

// Sets `connected` once it has a connection to the store.
absl::StatusOr<RunStores> Meet(const WorldInfo& world, absl::Duration timeout,
                               std::atomic<bool>& connected) {
  const absl::Time deadline = MonotonicNow() + timeout;
  ASSIGN_OR_RETURN(Connection connection, Connect(world, timeout));
  connected = true;
  // A store that rank 0 serves is new in each attempt. There the number must
  // not count: an agent that joins a run has restarted nothing yet.
  const int attempt = world.agent_store ? world.restart_count : 0;
  for (Store* store : {&connection.control, &connection.heartbeat}) {
    (*store)->setTimeout(absl::ToChronoMilliseconds(timeout));
    *store = c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat("tessera/attempt_", attempt), *store);
  }
  absl::Status met = StatusFromTorchOr([&]() -> absl::Status {
    RETURN_IF_ERROR(ClaimRank(*connection.control, world));
    return AwaitPeers(connection, world, deadline, timeout);
  });
  if (absl::IsInternal(met)) {
    return absl::UnavailableError(
        absl::StrCat("rank ", world.rank, " of ", world.world_size,
                     " waited for the other ranks and lost rank 0 at ",
                     Address(world), ", which has ended: ", met.message()));
  }
  RETURN_IF_ERROR(met);
  return RunStores{connection.control, connection.heartbeat};
}

// Runs Meet() in a separate thread.
struct Meeting {
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return outcome.has_value();
  }

  std::atomic<bool> connected = false;
  absl::Mutex mutex;
  absl::optional<absl::StatusOr<RunStores>> outcome ABSL_GUARDED_BY(mutex);
};

// What a meeting that reached its deadline was waiting for.
absl::string_view WhatDoesNotAnswer(const WorldInfo& world, bool connected) {
  if (connected) {
    return "the store let this rank in, and then stopped answering; its "
           "process may be stopped";
  }
  if (world.agent_store) {
    return "something accepts connections there but does not answer as "
           "torchrun's store does; if another program uses the port, give "
           "torchrun another one with --master_port";
  }
  return "the resolver does not answer; give MASTER_ADDR as an IP address";
}

}  // namespace

absl::StatusOr<RunStores> MeetAllRanks(const WorldInfo& world,
                                       absl::Duration timeout) {
  // The resolver and LibTorch's store have no time limit, so a silent listener
  // at the address would block a rank forever. In that case the thread is
  // abandoned, and the process ends with an error.
  const auto meeting = std::make_shared<Meeting>();
  std::thread([meeting, world, timeout] {
    absl::StatusOr<RunStores> outcome =
        Meet(world, timeout, meeting->connected);
    const absl::MutexLock lock(&meeting->mutex);
    meeting->outcome = std::move(outcome);
  }).detach();
  const absl::MutexLock lock(&meeting->mutex);
  meeting->mutex.AwaitWithTimeout(
      absl::Condition(meeting.get(), &Meeting::ended), timeout + kLatestEnd);
  if (meeting->ended()) return *std::move(meeting->outcome);
  return NoStore(world, timeout, WhatDoesNotAnswer(world, meeting->connected));
}

}  // namespace tessera
