#ifndef FRAMEWORK_DIST_COPY_ENGINE_MEMORY_H_
#define FRAMEWORK_DIST_COPY_ENGINE_MEMORY_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace tessera {

// Memory of a GPU that other GPUs of the machine read and write: symmetric
// windows of NCCL. Gathers and exchanges between them are copies, which are in
// order with other work like any copy, also in a CUDA graph. NCCL's kernels for
// such memory are a different matter: those of 2.28.9 may start before their
// operands are written (docs/experiments/nccl_windows), so the backend only
// gathers and exchanges. Operands outside of the memory go by NCCL's ring.
class CopyEngineMemory {
 public:
  virtual ~CopyEngineMemory() = default;

  // The tensors that `allocate` makes on this thread are in such memory, except
  // within a TemporaryMemoryScope. Every rank makes the same ones; Internal if
  // their sizes differ. Once only.
  virtual absl::Status Allocate(absl::FunctionRef<absl::Status()> allocate) = 0;
  // To be called before the backend and the tensors end.
  virtual absl::Status Release() = 0;
  // What gathers and exchanges.
  virtual c10d::Backend& backend() const = 0;
};

// For a backend of ConnectBackend() with `copy_engines`. Only in CUDA builds.
std::shared_ptr<CopyEngineMemory> MakeCopyEngineMemory(
    c10::intrusive_ptr<c10d::Backend> backend, c10::Device gpu);

// Whether NCCL can use copy engines from the current stream of `gpu`: not from
// CUDA's default stream, which ends the process (NCCL issue 2003). Only in CUDA
// builds.
bool AllowsCopyEngines(c10::Device gpu);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_COPY_ENGINE_MEMORY_H_
