#ifndef FRAMEWORK_OBSERVE_MEMORY_SNAPSHOT_WRITER_H_
#define FRAMEWORK_OBSERVE_MEMORY_SNAPSHOT_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "framework/observe/instrument.h"

namespace tessera {

struct SnapshotOptions {
  // Keep for each allocation the phase and op that asked for it, and the last
  // allocations and frees. Without, a snapshot shows what is where, not why.
  bool history = false;
  std::optional<int64_t> at_step;  // N
  bool on_out_of_memory = false;
  int rank = 0;  // others than rank 0 have it in their files' names
};

// Writes snapshots of LibTorch's allocator (memory_snapshot.h) into the run's
// folder: memory_snapshot_step_N.pickle when the host has issued step N, and
// out_of_memory.pickle when an allocation fails, with all that is allocated
// then. A file that cannot be written is a warning.
class SnapshotWriter : public Instrument {
 public:
  // The last out_of_memory.pickle of this process; empty without one.
  virtual std::string out_of_memory_file() const = 0;
};

// Only CUDA builds have it (framework/cuda/cuda_build.h). A process has one
// writer at a time.
std::unique_ptr<SnapshotWriter> CreateSnapshotWriter(
    const SnapshotOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_SNAPSHOT_WRITER_H_
