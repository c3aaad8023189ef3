// The ranks of process_group_test.cc. The test starts its own program again,
// once per rank, to run the one test in this file; Bazel never runs it.

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/exit_code.h"
#include "framework/base/status_macros.h"
#include "framework/base/temporary_memory.h"
#include "framework/base/torch_status.h"
#include "framework/dist/process_group.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#ifdef TESSERA_CUDA
#include "ATen/cuda/CUDAGraph.h"
#include "c10/cuda/CUDAGuard.h"
#endif

namespace tessera {
namespace {

absl::Duration DurationFromEnvironment(const char* name,
                                       absl::Duration absent) {
  const char* text = std::getenv(name);
  absl::Duration duration = absent;
  if (text != nullptr && !absl::ParseDuration(text, &duration)) return absent;
  return duration;
}

absl::Duration CollectiveTimeout() {
  return DurationFromEnvironment("DIST_TEST_COLLECTIVE_TIMEOUT",
                                 GroupTimeouts().collective);
}

absl::Status Expect(bool holds, absl::string_view what) {
  if (holds) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("does not hold: ", what));
}

struct Rank {
  WorldInfo world;
  at::Device device = at::kCPU;
  std::unique_ptr<ProcessGroup> group;
  std::vector<at::Tensor> windows;  // what copy engines move
};

// Element i on rank r is (r + 1) * (i % 13). The sum over r is exact in every
// dtype: at most 12 * 10 for 4 ranks, and BF16 represents all integers up to
// 256.
at::Tensor Pattern(int64_t size, at::ScalarType dtype, const Rank& rank) {
  return (at::arange(size, rank.device) % 13 * (rank.world.rank + 1)).to(dtype);
}

bool IsSummed(const at::Tensor& tensor, const Rank& rank) {
  const int64_t n = rank.world.world_size;
  return at::equal(
      tensor, (at::arange(tensor.numel(), rank.device) % 13 * (n * (n + 1) / 2))
                  .to(tensor.scalar_type()));
}

absl::Status CheckSums(Rank& rank) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
    for (const int64_t size : {0, 1, 7, 100'003}) {
      const at::Tensor tensor = Pattern(size, dtype, rank);
      RETURN_IF_ERROR(rank.group->AllReduceSum(tensor));
      RETURN_IF_ERROR(
          Expect(IsSummed(tensor, rank),
                 absl::StrCat("sum of ", size, " ", at::toString(dtype))));
    }
  }
  return absl::OkStatus();
}

// In place, and with a shard of its own.
absl::Status CheckScatteredSum(Rank& rank, int64_t part, at::ScalarType dtype) {
  const int64_t begin = part * rank.world.rank;
  const at::Tensor sum = Pattern(part * rank.world.world_size, dtype, rank);
  RETURN_IF_ERROR(rank.group->AllReduceSum(sum));
  const at::Tensor whole = Pattern(sum.numel(), dtype, rank);
  const at::Tensor shard = at::empty({part}, whole.options());
  RETURN_IF_ERROR(rank.group->ReduceScatterSum(whole, shard));
  RETURN_IF_ERROR(Expect(
      at::equal(whole, Pattern(sum.numel(), dtype, rank)) || part == 0,
      absl::StrCat("operand of the scattered sum of ", at::toString(dtype))));
  RETURN_IF_ERROR(
      rank.group->ReduceScatterSum(whole, whole.slice(0, begin, begin + part)));
  for (const at::Tensor& found : {shard, whole.slice(0, begin, begin + part)}) {
    RETURN_IF_ERROR(Expect(
        at::equal(found, sum.slice(0, begin, begin + part)),
        absl::StrCat("scattered sum of ", part, " ", at::toString(dtype))));
  }
  return absl::OkStatus();
}

// In place, and from a shard of its own.
absl::Status CheckGather(Rank& rank, int64_t part, at::ScalarType dtype) {
  const int64_t n = rank.world.world_size, begin = part * rank.world.rank;
  const at::Tensor expected =
      (at::arange(part * n, rank.device) % 101).to(dtype);
  const at::Tensor shard = expected.slice(0, begin, begin + part).clone();
  const at::Tensor apart = at::zeros_like(expected);
  const at::Tensor within = at::zeros_like(expected);
  RETURN_IF_ERROR(rank.group->AllGather(shard, apart));
  at::Tensor place = within.slice(0, begin, begin + part);
  place.copy_(shard);
  RETURN_IF_ERROR(rank.group->AllGather(place, within));
  return Expect(at::equal(apart, expected) && at::equal(within, expected),
                absl::StrCat("gathering of ", part, " ", at::toString(dtype)));
}

// Rank r sends 1000 * r + s * part + i to rank s.
absl::Status CheckExchange(Rank& rank, int64_t part) {
  const int64_t n = rank.world.world_size;
  const at::Tensor from =
      at::arange(n * part, at::device(rank.device).dtype(at::kFloat)) +
      1000 * rank.world.rank;
  const at::Tensor to = at::zeros_like(from);
  RETURN_IF_ERROR(rank.group->AllToAll(from, to));
  const at::Tensor sender = at::arange(n, rank.device).unsqueeze(1) * 1000;
  const at::Tensor place =
      at::arange(part, rank.device) + rank.world.rank * part;
  return Expect(at::equal(to, (sender + place).view({-1}).to(at::kFloat)),
                absl::StrCat("exchange of ", part));
}

// Sums of halves are rounded once, however many ranks there are.
absl::Status CheckRounding(Rank& rank, at::ScalarType dtype, double half_ulp) {
  constexpr int64_t kPart = 1000;
  const int64_t n = rank.world.world_size, begin = kPart * rank.world.rank;
  at::Tensor own, exact = at::zeros({n * kPart}, at::kDouble);
  for (int r = 0; r < n; ++r) {
    const at::Tensor addend =
        at::linspace(1 + r, 3 - 0.37 * r, n * kPart, at::kDouble)
            .sin()
            .to(dtype);
    if (r == rank.world.rank) own = addend.to(rank.device);
    exact += addend.to(at::kDouble);
  }
  const at::Tensor shard = at::empty({kPart}, own.options());
  RETURN_IF_ERROR(rank.group->ReduceScatterSum(own, shard));
  const at::Tensor wanted = exact.slice(0, begin, begin + kPart);
  const at::Tensor error = (shard.cpu().to(at::kDouble) - wanted).abs() -
                           half_ulp * wanted.abs().clamp_min(1e-3);
  return Expect(error.max().item<double>() <= 1e-6,
                absl::StrCat("rounding of ", at::toString(dtype), ": ",
                             error.max().item<double>()));
}

absl::Status CheckShards(Rank& rank) {
  RETURN_IF_ERROR(CheckRounding(rank, at::kBFloat16, 1.01 * 0x1p-8));
  RETURN_IF_ERROR(CheckRounding(rank, at::kHalf, 1.01 * 0x1p-11));
  for (const int64_t part : {0, 1, 7, 25'001}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      RETURN_IF_ERROR(CheckScatteredSum(rank, part, dtype));
    }
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kShort}) {
      RETURN_IF_ERROR(CheckGather(rank, part, dtype));
    }
    RETURN_IF_ERROR(CheckExchange(rank, part));
  }
  return absl::OkStatus();
}

absl::Status CheckRefusals(Rank& rank) {
  const at::Tensor matrix = at::zeros({4, 4}, rank.device);
  for (const absl::Status& refused :
       {rank.group->AllReduceSum(matrix.t().slice(0, 0, 2)),
        rank.group->AllReduceSum(at::Tensor()),
        rank.group->ReduceScatterSum(matrix, matrix[0].slice(0, 0, 3)),
        rank.group->AllGather(matrix, matrix),
        rank.group->AllToAll(matrix, matrix[0]),
        rank.group->Broadcast(matrix, rank.world.world_size)}) {
    RETURN_IF_ERROR(Expect(absl::IsInvalidArgument(refused),
                           absl::StrCat("refused: ", refused.ToString())));
  }
  return absl::OkStatus();
}

absl::Status CheckBroadcast(Rank& rank) {
  for (int root = 0; root < rank.world.world_size; ++root) {
    for (const at::ScalarType dtype :
         {at::kFloat, at::kBFloat16, at::kBool, at::kLong}) {
      Rank as_root = {rank.world, rank.device};
      as_root.world.rank = root;
      const at::Tensor tensor = Pattern(35, dtype, rank).view({5, 7});
      RETURN_IF_ERROR(rank.group->Broadcast(tensor, root));
      RETURN_IF_ERROR(Expect(
          at::equal(tensor.view({-1}), Pattern(35, dtype, as_root)),
          absl::StrCat("broadcast of ", at::toString(dtype), " from ", root)));
    }
  }
  const at::Tensor scalar = at::full({}, rank.world.rank, rank.device);
  RETURN_IF_ERROR(rank.group->Broadcast(scalar, 1));
  return Expect(scalar.item<double>() == 1, "broadcast of a scalar");
}

absl::Status CheckAgreement(Rank& rank) {
  constexpr uint64_t kHash = std::numeric_limits<uint64_t>::max() - 1;
  RETURN_IF_ERROR(rank.group->AgreeOn("the config's hash", kHash));
  const int last = rank.world.world_size - 1;
  const absl::Status differs = rank.group->AgreeOn(
      "the config's hash", rank.world.rank == last ? 7 : kHash);
  return Expect(differs.code() == absl::StatusCode::kFailedPrecondition &&
                    absl::StrContains(
                        differs.message(),
                        absl::StrCat("the config's hash differs: rank 0 has "
                                     "fffffffffffffffe, but rank ",
                                     last, " does not (rank ", last,
                                     " has 0000000000000007)")),
                differs.ToString());
}

// Checks that no rank leaves the barrier before the last has entered.
absl::Status CheckBarrier(Rank& rank) {
  const int64_t n = rank.world.world_size;
  at::Tensor entered = at::zeros({n}, at::kLong);
  at::Tensor left = at::zeros({n}, at::kLong);
  absl::SleepFor(absl::Milliseconds(100) * rank.world.rank);
  entered[rank.world.rank].fill_(absl::GetCurrentTimeNanos());
  RETURN_IF_ERROR(rank.group->Barrier());
  left[rank.world.rank].fill_(absl::GetCurrentTimeNanos());
  entered = entered.to(rank.device);
  left = left.to(rank.device);
  RETURN_IF_ERROR(rank.group->AllReduceSum(entered));
  RETURN_IF_ERROR(rank.group->AllReduceSum(left));
  return Expect(entered.max().item<int64_t>() <= left.min().item<int64_t>(),
                "a rank left the barrier before all had entered");
}

// Neighbours in pairs, and every second rank: each part sums its own.
absl::Status CheckSplit(Rank& rank) {
  const int world = rank.world.world_size, own = rank.world.rank;
  std::vector<int> pair, across;
  for (int r = 0; r < world; ++r) {
    if (r / 2 == own / 2) pair.push_back(r);
    if (r % 2 == own % 2) across.push_back(r);
  }
  for (const auto& [axis, ranks] :
       {std::pair{"shard", pair}, {"replica", across}}) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> part,
                     rank.group->Split(axis, ranks));
    RETURN_IF_ERROR(
        Expect(part->world_size() == static_cast<int>(ranks.size()) &&
                   ranks[part->rank()] == own,
               axis));
    const at::Tensor sum = at::full({3}, own + 1, rank.device);
    RETURN_IF_ERROR(part->AllReduceSum(sum));
    int expected = 0;
    for (const int r : ranks) expected += r + 1;
    RETURN_IF_ERROR(Expect(sum.eq(expected).all().item<bool>(), axis));
  }
  return absl::OkStatus();
}

absl::Status Collectives(Rank& rank) {
  RETURN_IF_ERROR(Expect(rank.group->rank() == rank.world.rank, "rank"));
  RETURN_IF_ERROR(
      Expect(rank.group->backend() == (rank.device.is_cuda() ? "nccl" : "gloo"),
             rank.group->backend()));
  RETURN_IF_ERROR(CheckSums(rank));
  RETURN_IF_ERROR(CheckShards(rank));
  RETURN_IF_ERROR(CheckRefusals(rank));
  RETURN_IF_ERROR(CheckBroadcast(rank));
  RETURN_IF_ERROR(CheckSplit(rank));
  RETURN_IF_ERROR(CheckAgreement(rank));
  return CheckBarrier(rank);
}

// No collective for longer than the peer timeout, which is not a failure.
absl::Status SlowRankZero(Rank& rank) {
  if (rank.world.rank == 0) absl::SleepFor(absl::Seconds(7));
  return absl::OkStatus();
}

// Rank 0 writes a checkpoint for longer than a collective may take.
absl::Status RankZeroWritesForLong(Rank& rank) {
  const absl::Duration writes = 1.5 * CollectiveTimeout();
  for (int i = 0; i < 2; ++i) {
    if (rank.world.rank == 0) absl::SleepFor(writes);
    RETURN_IF_ERROR(i == 0 ? rank.group->Barrier()
                           : rank.group->AgreeOn("the step", 7));
  }
  return CheckSums(rank);
}

// Lives, but enters no collective.
absl::Status RankOneHangs(Rank& rank) {
  if (rank.world.rank == 1) absl::SleepFor(absl::Minutes(5));
  return CheckSums(rank);
}

// The sums of five steps of two operations each. Rank 1 calls `in_step_four`
// between the operations of step 4.
template <typename Fn>
absl::Status FiveSteps(Rank& rank, const Fn& in_step_four) {
  const char* const folder = std::getenv("DIST_TEST_FOLDER");
  if (folder != nullptr) rank.group->SetReportFolder(folder);
  const at::Tensor tensor = at::ones({7}, rank.device);
  for (int64_t step = 1; step <= 5; ++step) {
    rank.group->SetStep(step);
    // So that the heartbeat sees two of them begin.
    absl::SleepFor(absl::Milliseconds(300));
    for (int64_t operation = 1; operation <= 2; ++operation) {
      rank.group->SetOperation(
          absl::StrCat("operation ", operation, " of 2 (gradients)"));
      if (rank.world.rank == 1 && step == 4 && operation == 2 &&
          !in_step_four()) {
        continue;
      }
      RETURN_IF_ERROR(rank.group->AllReduceSum(tensor));
    }
    rank.group->SetOperation("");
    // On a GPU the host gets stuck here.
    tensor.sum().item<float>();
  }
  return absl::OkStatus();
}

absl::Status RankOneHangsInAStep(Rank& rank) {
  return FiveSteps(rank, [] {
    absl::SleepFor(absl::Minutes(5));
    return true;
  });
}

// Its later operations meet the others' earlier ones, up to the last.
absl::Status RankOneSkipsAnOperation(Rank& rank) {
  return FiveSteps(rank, [] { return false; });
}

// Longer than a hang, which ends the run once it no longer writes.
absl::Status RankOneWritesThenHangs(Rank& rank) {
  return FiveSteps(rank, [&] {
    {
      const ExcusedWork work(rank.group.get(), "writes a checkpoint");
      absl::SleepFor(absl::Seconds(11));
    }
    absl::SleepFor(absl::Minutes(5));
    return true;
  });
}

absl::Status RankOneWrites(Rank& rank) {
  return FiveSteps(rank, [&] {
    const ExcusedWork work(rank.group.get(), "writes a checkpoint");
    absl::SleepFor(absl::Seconds(11));
    return true;
  });
}

absl::Status RankOneKilledWhileOthersSave(Rank& rank) {
  if (rank.world.rank == 1) std::raise(SIGKILL);
  return rank.group->Barrier();
}

absl::Status RankOneKilledWhileOthersReduce(Rank& rank) {
  at::Tensor tensor = Pattern(1'000, at::kFloat, rank);
  for (int64_t i = 0;; ++i) {
    if (rank.world.rank == 1 && i == 20) std::raise(SIGKILL);
    RETURN_IF_ERROR(rank.group->AllReduceSum(tensor.zero_()));
    // On a GPU the host gets stuck here.
    tensor.sum().item<float>();
  }
}

absl::Status RankOneKilledWhileOthersCompute(Rank& rank) {
  if (rank.world.rank == 1) std::raise(SIGKILL);
  absl::SleepFor(absl::Minutes(5));
  return absl::OkStatus();
}

absl::Status RankZeroStopped(Rank& rank) {
  if (rank.world.rank == 0) std::raise(SIGSTOP);
  absl::SleepFor(absl::Minutes(5));
  return absl::OkStatus();
}

absl::Status RankOneStopped(Rank& rank) {
  if (rank.world.rank == 1) std::raise(SIGSTOP);
  absl::SleepFor(absl::Minutes(5));
  return absl::OkStatus();
}

absl::Status RankZeroFails(Rank& rank) {
  if (rank.world.rank == 0) return absl::NotFoundError("no such file");
  return rank.group->Barrier();
}

absl::Status RankZeroFailsWhileOthersCompute(Rank& rank) {
  if (rank.world.rank == 0) return absl::NotFoundError("no such file");
  absl::SleepFor(absl::Minutes(5));
  return absl::OkStatus();
}

absl::Status RankOneFails(Rank& rank) {
  if (rank.world.rank == 1) return absl::NotFoundError("no such file");
  absl::SleepFor(absl::Minutes(5));
  return absl::OkStatus();
}

#ifdef TESSERA_CUDA
// The sum is part of a CUDA graph, as in a captured training step.
absl::Status CapturedSum(Rank& rank) {
  const at::Tensor tensor = Pattern(1'003, at::kBFloat16, rank);
  const at::Tensor source = tensor.clone();
  const c10::cuda::CUDAStreamGuard stream(
      c10::cuda::getStreamFromPool(false, rank.device.index()));
  RETURN_IF_ERROR(rank.group->AllReduceSum(tensor));
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  tensor.copy_(source);
  RETURN_IF_ERROR(rank.group->AllReduceSum(tensor));
  graph.capture_end();
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    RETURN_IF_ERROR(Expect(IsSummed(tensor, rank), "captured sum"));
  }
  return absl::OkStatus();
}

// Also if ranks need different temporary memory.
absl::Status GathersFromWindowsOfManySizes(Rank& rank) {
  const c10::cuda::CUDAStreamGuard stream(
      c10::cuda::getStreamFromPool(false, rank.device.index()));
  const auto allocate = [&](int64_t mib) {
    return at::empty({mib << 20}, at::dtype(at::kByte).device(rank.device));
  };
  rank.windows.push_back(allocate(2));  // an ordinary one
  RETURN_IF_ERROR(rank.group->UseCopyEngines([&] {
    for (const int64_t mib : {1188, 594, 44, 2646}) {
      rank.windows.push_back(allocate(mib));
      const TemporaryMemoryScope temporary;
      allocate(mib + 2 * rank.world.rank);
    }
    return absl::OkStatus();
  }));
  for (const at::Tensor& window : rank.windows) {
    const std::vector<at::Tensor> parts = window.chunk(rank.world.world_size);
    parts[rank.world.rank].fill_(rank.world.rank + 1);
    RETURN_IF_ERROR(rank.group->AllGather(parts[rank.world.rank], window));
    for (int i = 0; i < rank.world.world_size; ++i) {
      RETURN_IF_ERROR(Expect((parts[i] == i + 1).all().item<bool>(),
                             absl::StrCat("what rank ", i, " has sent")));
    }
  }
  return absl::OkStatus();
}
#endif

using Scenario = absl::Status (*)(Rank&);
const std::map<std::string, Scenario>& Scenarios() {
  static const auto* const scenarios = new std::map<std::string, Scenario>{
      {"Collectives", Collectives},
      {"AgentServesTheStore", Collectives},
      {"RankOneJoinedLater", Collectives},
      {"SlowRankZero", SlowRankZero},
      {"RankZeroWritesForLong", RankZeroWritesForLong},
      {"RankOneHangs", RankOneHangs},
      {"RankOneHangsInAStep", RankOneHangsInAStep},
      {"RankOneSkipsAnOperation", RankOneSkipsAnOperation},
      {"RankOneWritesThenHangs", RankOneWritesThenHangs},
      {"RankOneWrites", RankOneWrites},
      {"RankOneKilledWhileOthersSave", RankOneKilledWhileOthersSave},
      {"RankOneKilledWhileOthersReduce", RankOneKilledWhileOthersReduce},
      {"RankOneKilledWhileOthersCompute", RankOneKilledWhileOthersCompute},
      {"RankZeroStopped", RankZeroStopped},
      {"RankOneStopped", RankOneStopped},
      {"RankZeroFails", RankZeroFails},
      {"RankZeroFailsWhileOthersCompute", RankZeroFailsWhileOthersCompute},
      {"RankOneFails", RankOneFails},
#ifdef TESSERA_CUDA
      {"CapturedSum", CapturedSum},
      {"GathersFromWindowsOfManySizes", GathersFromWindowsOfManySizes},
#endif
  };
  return *scenarios;
}

// Serves the ranks' store like torchrun's agent until both have left, or, with
// `stop`, stops once both wait for a third rank.
absl::Status ServeAsAgent(bool stop) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = true;
  options.waitWorkers = false;
  return StatusFromTorch([&] {
    c10d::TCPStore store("127.0.0.1", options);
    const auto count = [&](const char* key) {
      return store.add(absl::StrCat("tessera/attempt_0/", key), 0);
    };
    while (stop ? count("claims/0") + count("claims/1") < 2
                : count("left") < 2) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    if (stop) std::raise(SIGSTOP);
    absl::SleepFor(absl::Seconds(1));  // rank 0 leaves last
  });
}

absl::Status RunScenario(const std::string& name) {
  const bool agent_stops = name == "AgentStopsAnswering";
  const bool agent = agent_stops || name == "AgentServesTheStore";
  if (agent && std::string(std::getenv("RANK")) == "2") {
    return ServeAsAgent(agent_stops);
  }
  Rank rank;
  ASSIGN_OR_RETURN(rank.world, WorldFromEnvironment());
  rank.world.agent_store |= agent;
  // A launcher's agent that joins a run has restarted nothing yet.
  if (name == "RankOneJoinedLater" && rank.world.rank == 0) {
    rank.world.restart_count = 1;
  }
  // Wrong settings of a cluster, for the tests of the start.
  if (name == "RankOneExpectsFive" && rank.world.rank == 1) {
    rank.world.world_size = 5;
  }
  if (name == "RankOneLooksElsewhere" && rank.world.rank == 1) {
    rank.world.master_port = 1;
  }
  if (name == "RankOneHasAnotherSecret" && rank.world.rank == 1) {
    rank.world.secret += "!";
  }
  if (name == "RankTwoClaimsOne" && rank.world.rank == 2) rank.world.rank = 1;
  if (std::getenv("DIST_TEST_CUDA") != nullptr) {
    rank.device = at::Device(at::kCUDA, rank.world.local_rank);
  }
  GroupTimeouts timeouts;
  timeouts.peer =
      DurationFromEnvironment("DIST_TEST_PEER_TIMEOUT", timeouts.peer);
  timeouts.collective = CollectiveTimeout();
  timeouts.stalled =
      DurationFromEnvironment("DIST_TEST_STALLED", timeouts.stalled);
  ASSIGN_OR_RETURN(rank.group,
                   ProcessGroup::Create(rank.world, rank.device, timeouts));
  const auto scenario = Scenarios().find(name);
  if (scenario == Scenarios().end()) {
    return absl::InternalError("the ranks should not have met");
  }
  RETURN_IF_ERROR(scenario->second(rank));
  return rank.group->Finish();
}

TEST(ProcessGroupWorker, DISABLED_Run) {
  const char* scenario = std::getenv("DIST_TEST_SCENARIO");
  ASSERT_NE(scenario, nullptr) << "only for process_group_test.cc to start";
  // Ignores the launcher's request to end, so that ranks must detect the
  // failure.
  if (std::getenv("DIST_TEST_IGNORE_SIGTERM") != nullptr) {
    std::signal(SIGTERM, SIG_IGN);
  }
  const int exit_code = ReportAndExitCode(RunScenario(scenario));
  std::printf("%s ends with %d\n", scenario, exit_code);
  std::fflush(stdout);
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace tessera
