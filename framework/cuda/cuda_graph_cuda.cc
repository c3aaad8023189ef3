#include <memory>
#include <utility>

#include "ATen/cuda/CUDAContextLight.h"
#include "ATen/cuda/CUDAGraph.h"
#include "absl/strings/str_cat.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_graph.h"

namespace tessera {

namespace {

// Memory and stream of recordings. A second stream would have a workspace of
// cuBLAS of its own.
struct Recording {
  explicit Recording(c10::Device device)
      : stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true,
                                            device.index())) {}

  const c10::cuda::CUDAStream stream;
  const c10::MempoolId_t memory = at::cuda::graph_pool_handle();
};

class TorchCudaGraph : public CudaGraph {
 public:
  explicit TorchCudaGraph(std::shared_ptr<const Recording> recording)
      : recording_(std::move(recording)) {}

  bool captured() const override { return graph_ != nullptr; }

  absl::Status Capture(absl::FunctionRef<absl::Status()> issue) override {
    graph_.reset();
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    absl::Status issued;
    const absl::Status recorded = StatusFromTorch([&] {
      // A graph has memory of its own: gives back what the runs before it used.
      c10::cuda::device_synchronize();
      at::cuda::clearCublasWorkspaces();
      c10::cuda::CUDACachingAllocator::emptyCache();
      const c10::cuda::CUDAStreamGuard guard(recording_->stream);
      // Other threads, such as those of NCCL, may use CUDA meanwhile.
      graph->capture_begin(recording_->memory,
                           cudaStreamCaptureModeThreadLocal);
      issued = StatusFromTorchOr(issue);
      graph->capture_end();
    });
    const absl::Status& status = issued.ok() ? recorded : issued;
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("the step cannot be recorded as a CUDA graph (set "
                       "execution.mode: EAGER to run without): ",
                       status.message()));
    }
    graph_ = std::move(graph);
    return absl::OkStatus();
  }

  absl::Status Launch() override {
    return StatusFromTorch([&] { graph_->replay(); });
  }

  const std::shared_ptr<const Recording>& recording() const {
    return recording_;
  }

 private:
  const std::shared_ptr<const Recording> recording_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;  // null before Capture()
};

// What a stream that is being recorded has recorded last.
struct LastRecorded {
  unsigned long long recording = 0;
  cudaGraphNode_t node = nullptr;  // null if it is not one node

  friend bool operator==(const LastRecorded&, const LastRecorded&) = default;
};

LastRecorded LastRecordedOn(cudaStream_t stream) {
  LastRecorded last;
  cudaStreamCaptureStatus status;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &last.recording,
                                          /*graph=*/nullptr, &nodes, &edges,
                                          &count));
  if (count == 1) last.node = nodes[0];
  return last;
}

class EventMoment : public GraphMoment {
 public:
  explicit EventMoment(cudaStream_t stream) {
    C10_CUDA_CHECK(cudaEventCreate(&event_));
    // An external event becomes a node of the graph; without the flag it would
    // only order the recording.
    C10_CUDA_CHECK(
        cudaEventRecordWithFlags(event_, stream, cudaEventRecordExternal));
    recorded_ = LastRecordedOn(stream);
  }
  ~EventMoment() override { C10_CUDA_IGNORE_ERROR(cudaEventDestroy(event_)); }

  double MsSince(const GraphMoment& earlier) const override {
    float ms = 0;
    C10_CUDA_CHECK(cudaEventSynchronize(event_));
    C10_CUDA_CHECK(cudaEventElapsedTime(
        &ms, static_cast<const EventMoment&>(earlier).event_, event_));
    return ms;
  }

  bool IsLastOn(cudaStream_t stream) const {
    return recorded_.node != nullptr && LastRecordedOn(stream) == recorded_;
  }

 private:
  cudaEvent_t event_ = nullptr;
  LastRecorded recorded_;
};

}  // namespace

std::shared_ptr<const GraphMoment> RecordMoment(
    c10::Device device, std::shared_ptr<const GraphMoment> last) {
  const cudaStream_t stream =
      c10::cuda::getCurrentCUDAStream(device.index()).stream();
  if (last != nullptr &&
      static_cast<const EventMoment&>(*last).IsLastOn(stream)) {
    return last;
  }
  return std::make_shared<EventMoment>(stream);
}

std::unique_ptr<CudaGraph> MakeCudaGraph(c10::Device device) {
  return std::make_unique<TorchCudaGraph>(std::make_shared<Recording>(device));
}

std::unique_ptr<CudaGraph> MakeCudaGraphBeside(const CudaGraph& first) {
  return std::make_unique<TorchCudaGraph>(
      static_cast<const TorchCudaGraph&>(first).recording());
}

bool CurrentStreamIsCapturing(c10::Device gpu) {
  const c10::cuda::CUDAGuard guard(gpu);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
         c10::cuda::CaptureStatus::None;
}

}  // namespace tessera
