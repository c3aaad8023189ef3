#ifndef FRAMEWORK_CUDA_CUDA_GRAPH_H_
#define FRAMEWORK_CUDA_CUDA_GRAPH_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "framework/cuda/cuda_build.h"

namespace tessera {

// Work of a GPU that is recorded once and then launched with one call, which
// spares the host the launch of each kernel.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;

  virtual bool captured() const = 0;

  // Runs `issue` without recording it, on the stream and in the memory of
  // recordings: beside a graph that exists, it takes no memory of its own. What
  // `issue` leaves allocated, recordings do not reuse.
  virtual absl::Status Rehearse(absl::FunctionRef<absl::Status()> issue) = 0;

  // Records what `issue` enqueues on the current stream; nothing runs. The same
  // work must have been rehearsed before, because first calls load kernels and
  // create handles. Memory that `issue` allocates belongs to the graph.
  // Replaces an earlier recording. The error says what cannot be recorded;
  // after it the graph is not captured(), and can record again.
  virtual absl::Status Capture(absl::FunctionRef<absl::Status()> issue) = 0;

  // Enqueues the recorded work on the current stream.
  virtual absl::Status Launch() = 0;
};

// A moment in the recorded work of a graph. Each launch sets it anew.
class GraphMoment {
 public:
  virtual ~GraphMoment() = default;
  // Milliseconds since `earlier` in the last launch; waits for this moment.
  virtual double MsSince(const GraphMoment& earlier) const = 0;
};

// The functions below exist in CUDA builds only (cuda_build.h). They throw
// LibTorch's exceptions.
std::unique_ptr<CudaGraph> MakeCudaGraph(c10::Device device);
// Another graph that allocates from the memory of `first`. They must not run at
// the same time, and what one leaves for the host the other may overwrite.
std::unique_ptr<CudaGraph> MakeCudaGraphBeside(const CudaGraph& first);
// Now, while the current stream is being recorded: `last`, which may be null,
// if nothing was recorded there since, because a moment takes about 2 us of
// every launch; else a new one.
std::shared_ptr<const GraphMoment> RecordMoment(
    c10::Device device, std::shared_ptr<const GraphMoment> last);
// What IsCapturing() asks.
bool CurrentStreamIsCapturing(c10::Device gpu);

// Whether the current stream is being recorded. In every build.
inline bool IsCapturing(c10::Device device) {
  if constexpr (kCudaBuild) {
    return device.is_cuda() && CurrentStreamIsCapturing(device);
  }
  return false;
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_CUDA_GRAPH_H_
