#ifndef FRAMEWORK_DIST_WORLD_H_
#define FRAMEWORK_DIST_WORLD_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The place of this process in a run.
struct WorldInfo {
  int rank = 0;  // in [0, world_size)
  int world_size = 1;
  int local_rank = 0;  // rank on this machine; selects the GPU
  int local_world_size = 1;
  // Address of rank 0 or torchrun's agent, which serves the key-value store in
  // which the ranks find each other. Unused in a world of one.
  std::string master_addr;
  int master_port = 0;
  // The launcher already serves that store, so rank 0 is a client, too.
  bool agent_store = false;
  // How often the launcher has restarted this process, or the job. Separates
  // the keys of an attempt from those of the previous one in an agent's store.
  // Agents that joined the run at different times count differently.
  int restart_count = 0;
  // Known only to the ranks. Clients of rank 0's store must prove that they
  // know it. If empty, every client is accepted.
  std::string secret;
  // "torchrun", "slurm", "launch", "single", "simulated"
  std::string source = "single";
  // True if the other ranks do not exist (SimulatedWorld()).
  bool simulated = false;

  // Whether this process prints: rank 0, or a simulated rank.
  bool prints() const { return rank == 0 || simulated; }
};

// The value of an environment variable; null if it is not set.
using EnvironmentRef = absl::FunctionRef<const char*(const char* variable)>;

// Reads, in this order:
//   torchrun (and `launch`): RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
//     MASTER_ADDR, MASTER_PORT, and, which may be absent,
//     TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RESTART_COUNT. With
//     WORLD_SIZE=1 the first two are enough.
//   Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,
//     SLURM_STEP_TASKS_PER_NODE with SLURM_NODEID or SLURM_NTASKS_PER_NODE or
//     SLURM_NNODES, with MASTER_ADDR or the first host of SLURM_STEP_NODELIST
//     or SLURM_JOB_NODELIST, and MASTER_PORT or a port derived from
//     SLURM_JOB_ID and SLURM_STEP_ID. SLURM_RESTART_COUNT may be absent.
//   With both: TESSERA_SECRET, at least 16 characters, the same for every rank;
//     `launch` creates one for each run. docs/distributed.md says what it
//     protects against.
// Without either launcher: one process. InvalidArgument names the variables
// that are missing or contradict each other, and their values, but never the
// secret.
absl::StatusOr<WorldInfo> WorldFromEnvironment();
absl::StatusOr<WorldInfo> WorldFromEnvironment(EnvironmentRef environment);

// Rank `rank` of `ranks` without the others, on the first device of this
// machine. InvalidArgument, beginning with the flag ("--rank=512 ..."), if
// `ranks` is not in [2, 2^20] or `rank` not in [0, ranks), or if `environment`
// has variables of a launcher, which starts ranks that exist.
absl::StatusOr<WorldInfo> SimulatedWorld(int ranks, int rank);
absl::StatusOr<WorldInfo> SimulatedWorld(int ranks, int rank,
                                         EnvironmentRef environment);

// "rank 7 of 512; sums have only this rank's part, ..." if the world is
// simulated, otherwise empty. Everything that a simulated run prints or writes
// has it.
std::string DescribeSimulation(const WorldInfo& world);

// The index, among `visible` GPUs, of this process's GPU: its local rank. Under
// `srun --gpus-per-task=1` each task sees only its own GPU, whatever its local
// rank.
int CudaDeviceIndex(const WorldInfo& world, int visible);

// The first host of Slurm's compressed list: "gpu[07-09,12],login1" -> "gpu07",
// "rack[1-2]-node[03,05]" -> "rack1-node03".
std::string FirstSlurmHost(absl::string_view node_list);

// Whether `address` is only reachable for processes of this machine.
bool IsLoopback(absl::string_view address);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_WORLD_H_
