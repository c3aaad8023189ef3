#ifndef FRAMEWORK_DIST_WORLD_H_
#define FRAMEWORK_DIST_WORLD_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// This process's place among the processes of a run.
struct WorldInfo {
  int rank = 0;  // in [0, world_size)
  int world_size = 1;
  int local_rank = 0;  // among the processes of this machine; picks its GPU
  int local_world_size = 1;
  // Where rank 0, or torchrun's agent, serves the key-value store in which the
  // ranks find each other. Unused in a world of one.
  std::string master_addr;
  int master_port = 0;
  // The launcher already serves that store: rank 0 is a client too.
  bool agent_store = false;
  // How often the launcher has restarted the run; keeps the keys of one attempt
  // apart from those of the attempt before.
  int restart_count = 0;
  // Known to every rank and to nobody else: who cannot prove to know it is not
  // let into the store that rank 0 serves. Empty: everyone is.
  std::string secret;
  std::string source = "single";  // "torchrun", "slurm", "launch", "single"
};

// The value of an environment variable, or null when it is not set.
using EnvironmentRef = absl::FunctionRef<const char*(const char* variable)>;

// Reads, in this order:
//   torchrun (and `launch`): RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
//     MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE,
//     TORCHELASTIC_RESTART_COUNT. The LOCAL_ pair may be absent where one
//     machine holds every rank.
//   Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE or
//     SLURM_NNODES, with MASTER_ADDR or the first host of SLURM_STEP_NODELIST
//     or SLURM_JOB_NODELIST, and MASTER_PORT or a port derived from
//     SLURM_JOB_ID.
// Both: TESSERA_SECRET, at least 16 characters, the same for every rank;
// `launch`
//   makes one for each run. docs/distributed.md says what it protects against.
// Without either: one process. InvalidArgument names the variable and its value
// where they contradict each other; it never shows the secret.
absl::StatusOr<WorldInfo> WorldFromEnvironment();
absl::StatusOr<WorldInfo> WorldFromEnvironment(EnvironmentRef environment);

// Which of the `visible` GPUs is this process's: that of its local rank. Under
// `srun --gpus-per-task=1` each task sees its own alone, whatever its local
// rank.
int CudaDeviceIndex(const WorldInfo& world, int visible);

// The first host of Slurm's compressed list: "gpu[07-09,12],login1" -> "gpu07",
// "rack[1-2]-node[03,05]" -> "rack1-node03".
std::string FirstSlurmHost(absl::string_view node_list);

// Whether only processes of this machine can reach `address`.
bool IsLoopback(absl::string_view address);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_WORLD_H_
