#include "framework/dist/world.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

constexpr int kMaxPort = 65535;

// Reads integers from environment variables, so that every error names the
// variable and its value.
class Variables {
 public:
  explicit Variables(EnvironmentRef environment) : environment_(environment) {}

  bool Has(const char* name) const { return Text(name) != nullptr; }

  // An empty variable counts as unset, as in `RANK= ./train`.
  const char* Text(const char* name) const {
    const char* value = environment_(name);
    return value == nullptr || *value == '\0' ? nullptr : value;
  }

  absl::StatusOr<int> Integer(const char* name, int low, int high) const {
    const char* text = Text(name);
    if (text == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          name,
          " is not set, but other variables of a distributed run are; "
          "start every rank through `launch`, torchrun or srun"));
    }
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, "=", text, " must be an integer in [", low, ", ", high, "]"));
    }
    return value;
  }

  absl::StatusOr<int> IntegerOr(const char* name, int absent, int low,
                                int high) const {
    if (!Has(name)) return absent;
    return Integer(name, low, high);
  }

  // An id of Slurm's, which has 32 bits; 0 if it is not set.
  absl::StatusOr<int64_t> IdOrZero(const char* name) const {
    if (!Has(name)) return 0;
    uint32_t id = 0;
    if (absl::SimpleAtoi(Text(name), &id)) return id;
    return absl::InvalidArgumentError(absl::StrCat(
        name, "=", Text(name), " must be an integer in [0, ", UINT32_MAX, "]"));
  }

 private:
  const EnvironmentRef environment_;
};

// The variables in which a launcher publishes the four numbers.
struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};
constexpr Names kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE"};
constexpr Names kSlurm = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                          "SLURM_NTASKS_PER_NODE"};
constexpr int kMaxRanks = 1 << 20;

// Without one of these a rank would wait for others that never come, or take
// another rank's GPU.
absl::Status CheckComplete(const Variables& variables, int world_size) {
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR", "MASTER_PORT"}) {
    if (!variables.Has(name)) missing.push_back(name);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "WORLD_SIZE=", world_size, ", but ", absl::StrJoin(missing, ", "),
      missing.size() == 1 ? " is" : " are",
      " not set; start every rank through `launch`, torchrun or srun, which "
      "set all of them, or unset WORLD_SIZE to train in one process"));
}

absl::Status CheckBelow(const char* name, int value, const char* bound_name,
                        int bound) {
  if (value < bound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, "=", value, " must be less than ", bound_name, "=", bound));
}

absl::Status CheckConsistent(const WorldInfo& world, const Names& names) {
  RETURN_IF_ERROR(
      CheckBelow(names.rank, world.rank, names.world_size, world.world_size));
  RETURN_IF_ERROR(CheckBelow(names.local_rank, world.local_rank,
                             names.local_world_size, world.local_world_size));
  if (world.local_world_size <= world.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      names.local_world_size, "=", world.local_world_size, " must be at most ",
      names.world_size, "=", world.world_size));
}

absl::StatusOr<WorldInfo> FromTorchrun(const Variables& variables) {
  WorldInfo world;
  world.source = variables.Has("TESSERA_LAUNCH") ? "launch" : "torchrun";
  ASSIGN_OR_RETURN(world.world_size,
                   variables.Integer("WORLD_SIZE", 1, kMaxRanks));
  if (world.world_size > 1) {
    RETURN_IF_ERROR(CheckComplete(variables, world.world_size));
  }
  ASSIGN_OR_RETURN(world.rank, variables.Integer("RANK", 0, kMaxRanks));
  ASSIGN_OR_RETURN(world.local_rank,
                   variables.IntegerOr("LOCAL_RANK", world.rank, 0, kMaxRanks));
  ASSIGN_OR_RETURN(
      world.local_world_size,
      variables.IntegerOr("LOCAL_WORLD_SIZE", world.world_size, 1, kMaxRanks));
  RETURN_IF_ERROR(CheckConsistent(world, kTorchrun));
  ASSIGN_OR_RETURN(
      world.restart_count,
      variables.IntegerOr("TORCHELASTIC_RESTART_COUNT", 0, 0, kMaxRanks));
  if (world.world_size == 1) return world;
  world.master_addr = variables.Text("MASTER_ADDR");
  ASSIGN_OR_RETURN(world.master_port,
                   variables.Integer("MASTER_PORT", 1, kMaxPort));
  const char* agent = variables.Text("TORCHELASTIC_USE_AGENT_STORE");
  world.agent_store = agent != nullptr && absl::EqualsIgnoreCase(agent, "true");
  return world;
}

// Outside of Linux's default ephemeral range, and the same on every rank.
// Steps that a job runs at the same time have different ports, and so have jobs
// with consecutive ids.
absl::StatusOr<int> SlurmPort(const Variables& variables) {
  if (variables.Has("MASTER_PORT")) {
    return variables.Integer("MASTER_PORT", 1, kMaxPort);
  }
  ASSIGN_OR_RETURN(const int64_t job, variables.IdOrZero("SLURM_JOB_ID"));
  ASSIGN_OR_RETURN(const int64_t step, variables.IdOrZero("SLURM_STEP_ID"));
  constexpr int64_t kPorts = 10000, kPortsBetweenSteps = 997;
  return static_cast<int>(20000 + (job + kPortsBetweenSteps * step) % kPorts);
}

absl::StatusOr<std::string> SlurmMaster(const Variables& variables) {
  if (variables.Has("MASTER_ADDR")) return variables.Text("MASTER_ADDR");
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (!variables.Has(name)) continue;
    std::string host = FirstSlurmHost(variables.Text(name));
    if (!host.empty()) return host;
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", variables.Text(name), " names no host"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "SLURM_NTASKS=", variables.Text("SLURM_NTASKS"),
      " but neither MASTER_ADDR nor SLURM_STEP_NODELIST is set; start with "
      "srun, or set MASTER_ADDR to the host of rank 0"));
}

// The number of tasks on node `node` by Slurm's compressed list: "4(x2),1" for
// three nodes. Nullopt if it has no number for that node.
std::optional<int> TasksOfNode(absl::string_view list, int node) {
  for (const absl::string_view entry : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits("(x", 1));
    int tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(parts.first, &tasks)) return std::nullopt;
    if (!parts.second.empty() &&
        !absl::SimpleAtoi(absl::StripSuffix(parts.second, ")"), &nodes)) {
      return std::nullopt;
    }
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return std::nullopt;
}

constexpr char kTasksOfStep[] = "SLURM_STEP_TASKS_PER_NODE";

// srun says how it has placed the tasks; otherwise a guess.
bool SaysTasksOfNodes(const Variables& variables) {
  return variables.Has(kTasksOfStep) && variables.Has("SLURM_NODEID");
}

absl::StatusOr<int> SlurmLocalWorldSize(const Variables& variables,
                                        int world_size) {
  if (SaysTasksOfNodes(variables)) {
    ASSIGN_OR_RETURN(const int node,
                     variables.Integer("SLURM_NODEID", 0, kMaxRanks));
    const char* const list = variables.Text(kTasksOfStep);
    if (const auto tasks = TasksOfNode(list, node); tasks > 0) return *tasks;
    return absl::InvalidArgumentError(absl::StrCat(
        kTasksOfStep, "=", list, " has no number of tasks for SLURM_NODEID=",
        node, "; start with srun, or unset ", kTasksOfStep));
  }
  ASSIGN_OR_RETURN(const int nodes,
                   variables.IntegerOr("SLURM_NNODES", 1, 1, kMaxRanks));
  const int evenly_spread = (world_size + nodes - 1) / nodes;
  ASSIGN_OR_RETURN(const int per_node,
                   variables.IntegerOr("SLURM_NTASKS_PER_NODE", evenly_spread,
                                       1, kMaxRanks));
  // The number is the job's; a job step may have fewer tasks.
  return std::min(per_node, world_size);
}

absl::StatusOr<WorldInfo> FromSlurm(const Variables& variables) {
  WorldInfo world;
  world.source = "slurm";
  ASSIGN_OR_RETURN(world.world_size,
                   variables.Integer("SLURM_NTASKS", 1, kMaxRanks));
  ASSIGN_OR_RETURN(world.rank, variables.Integer("SLURM_PROCID", 0, kMaxRanks));
  ASSIGN_OR_RETURN(world.local_rank,
                   variables.IntegerOr("SLURM_LOCALID", 0, 0, kMaxRanks));
  ASSIGN_OR_RETURN(world.local_world_size,
                   SlurmLocalWorldSize(variables, world.world_size));
  Names names = kSlurm;
  if (SaysTasksOfNodes(variables)) names.local_world_size = kTasksOfStep;
  RETURN_IF_ERROR(CheckConsistent(world, names));
  ASSIGN_OR_RETURN(
      const int claimed,
      variables.IntegerOr("WORLD_SIZE", world.world_size, 1, kMaxRanks));
  if (claimed != world.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "WORLD_SIZE=", claimed, " contradicts SLURM_NTASKS=", world.world_size,
        "; unset WORLD_SIZE"));
  }
  ASSIGN_OR_RETURN(world.restart_count,
                   variables.IntegerOr("SLURM_RESTART_COUNT", 0, 0, kMaxRanks));
  if (world.world_size == 1) return world;
  ASSIGN_OR_RETURN(world.master_addr, SlurmMaster(variables));
  ASSIGN_OR_RETURN(world.master_port, SlurmPort(variables));
  return world;
}

absl::StatusOr<WorldInfo> FromLauncher(const Variables& variables) {
  if (variables.Has("RANK")) return FromTorchrun(variables);
  // Job scripts often export WORLD_SIZE and MASTER_ADDR and leave the ranks to
  // srun; FromSlurm() compares WORLD_SIZE and SLURM_NTASKS.
  if (variables.Has("SLURM_PROCID") && variables.Has("SLURM_NTASKS")) {
    return FromSlurm(variables);
  }
  if (variables.Has("WORLD_SIZE") || variables.Has("LOCAL_RANK")) {
    return FromTorchrun(variables);
  }
  return WorldInfo{};
}

absl::StatusOr<std::string> Secret(const Variables& variables) {
  constexpr size_t kShortestSecret = 16;
  const std::string secret =
      variables.Has("TESSERA_SECRET") ? variables.Text("TESSERA_SECRET") : "";
  if (secret.empty() || secret.size() >= kShortestSecret) return secret;
  return absl::InvalidArgumentError(absl::StrCat(
      "TESSERA_SECRET has ", secret.size(),
      " characters; it must have at "
      "least ",
      kShortestSecret, ", chosen at random (openssl rand -hex 16)"));
}

const char* VariableOfThisProcess(const char* variable) {
  return std::getenv(variable);
}

}  // namespace

absl::StatusOr<WorldInfo> WorldFromEnvironment(EnvironmentRef environment) {
  const Variables variables(environment);
  ASSIGN_OR_RETURN(WorldInfo world, FromLauncher(variables));
  if (world.world_size == 1) return world;
  ASSIGN_OR_RETURN(world.secret, Secret(variables));
  return world;
}

absl::StatusOr<WorldInfo> WorldFromEnvironment() {
  return WorldFromEnvironment(VariableOfThisProcess);
}

absl::StatusOr<WorldInfo> SimulatedWorld(int ranks, int rank) {
  return SimulatedWorld(ranks, rank, VariableOfThisProcess);
}

absl::StatusOr<WorldInfo> SimulatedWorld(int ranks, int rank,
                                         EnvironmentRef environment) {
  if (ranks < 2 || ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--simulate_world=", ranks, " must be in [2, ", kMaxRanks,
                     "]: the number of ranks of the run to simulate"));
  }
  if (rank < 0 || rank >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank=", rank, " must be in [0, ", ranks - 1,
                     "] with --simulate_world=", ranks));
  }
  const Variables variables(environment);
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (!variables.Has(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--simulate_world=", ranks, " runs one rank without a launcher, but ",
        name, "=", variables.Text(name),
        " is set; start `train` directly and unset RANK and WORLD_SIZE, or "
        "remove --simulate_world"));
  }
  // Slurm sets its variables also for a single task.
  ASSIGN_OR_RETURN(const WorldInfo launched, FromLauncher(variables));
  if (launched.world_size > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--simulate_world=", ranks,
        " runs one rank, but SLURM_NTASKS=", launched.world_size,
        "; start one task (srun --ntasks=1), or remove --simulate_world"));
  }
  WorldInfo world;
  world.rank = rank;
  world.world_size = ranks;
  world.source = "simulated";
  world.simulated = true;
  return world;
}

std::string DescribeSimulation(const WorldInfo& world) {
  if (!world.simulated) return "";
  return absl::StrCat("rank ", world.rank, " of ", world.world_size,
                      "; sums have only this rank's part, so losses are not "
                      "those of a real run");
}

int CudaDeviceIndex(const WorldInfo& world, int visible) {
  return world.source == "slurm" && visible == 1 ? 0 : world.local_rank;
}

std::string FirstSlurmHost(absl::string_view node_list) {
  std::string host;
  bool in_brackets = false;
  bool first_of_brackets = false;
  for (const char c : node_list) {
    if (c == '[') {
      in_brackets = first_of_brackets = true;
    } else if (c == ']') {
      in_brackets = false;
    } else if (in_brackets) {
      if (c == '-' || c == ',') first_of_brackets = false;
      if (first_of_brackets) host.push_back(c);
    } else if (c == ',') {
      break;
    } else {
      host.push_back(c);
    }
  }
  return host;
}

bool IsLoopback(absl::string_view address) {
  return address == "localhost" || address == "::1" ||
         absl::StartsWith(address, "127.");
}

}  // namespace tessera
