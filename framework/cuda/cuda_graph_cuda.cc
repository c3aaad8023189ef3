#include <memory>
#include <string>
#include <utility>

#include "ATen/core/CachingHostAllocator.h"
#include "ATen/cuda/CUDAContextLight.h"
#include "ATen/cuda/CUDAGeneratorImpl.h"
#include "ATen/cuda/CUDAGraph.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/cuda/device.h"

namespace tessera {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Memory and stream of recordings. A second stream would have a workspace of
// cuBLAS of its own.
class Recording {
 public:
  // LibTorch counts the graphs that use a pool of memory, on the device and for
  // page-locked memory, and accepts no graph for a pool that had some and has
  // none. This object counts as one.
  explicit Recording(c10::Device device)
      : stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true,
                                            device.index())) {
    allocator::createOrIncrefPool(device.index(), memory);
    page_locked().begin_allocate_to_pool(memory,
                                         [](c10::Stream) { return false; });
    page_locked().end_allocate_to_pool(memory);
  }
  ~Recording() {
    // Those of cuBLAS for this stream are in this memory, and would keep it.
    at::cuda::clearCublasWorkspaces();
    allocator::releasePool(stream.device_index(), memory);
    page_locked().release_pool(memory);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  static at::HostAllocator& page_locked() {
    return *at::getHostAllocator(at::kCUDA);
  }

  const c10::cuda::CUDAStream stream;
  const c10::MempoolId_t memory = at::cuda::graph_pool_handle();
};

class Graph : public at::cuda::CUDAGraph {
 public:
  // Ends what capture_begin() began, if capture_end() has failed: LibTorch
  // would send later allocations to this graph's pool, and refuse to draw
  // random numbers.
  void CleanUpAfterFailure() {
    if (capture_ended_) return;
    for (const auto& [generator, increment] : captured_generator_states_) {
      generator->capturing_ = false;
    }
    const c10::DeviceIndex device = capture_stream_.device_index();
    if (StatusFromTorch([&] {
          allocator::endAllocateToPool(device, mempool_id_);
        }).ok()) {
      allocator::releasePool(device, mempool_id_);
    }
    if (StatusFromTorch([&] {
          Recording::page_locked().end_allocate_to_pool(mempool_id_);
        }).ok()) {
      Recording::page_locked().release_pool(mempool_id_);
    }
  }
};

// Recordings have memory of their own: gives back what earlier work used.
void GiveBackOtherMemory() {
  c10::cuda::device_synchronize();
  at::cuda::clearCublasWorkspaces();
  allocator::emptyCache();
}

class TorchCudaGraph : public CudaGraph {
 public:
  explicit TorchCudaGraph(std::shared_ptr<const Recording> recording)
      : recording_(std::move(recording)) {}

  bool captured() const override { return graph_ != nullptr; }

  absl::Status Rehearse(absl::FunctionRef<absl::Status()> issue) override {
    return StatusFromTorchOr([&] {
      const c10::cuda::CUDAStream stream = recording_->stream;
      const c10::DeviceIndex device = stream.device_index();
      const c10::cuda::CUDAStream caller =
          c10::cuda::getCurrentCUDAStream(device);
      GiveBackOtherMemory();
      MakeWait(stream, caller);
      absl::Status issued;
      {
        const c10::cuda::CUDAStreamGuard guard(stream);
        allocator::beginAllocateToPool(device, recording_->memory,
                                       [stream](cudaStream_t asking) {
                                         return asking == stream.stream();
                                       });
        const absl::Cleanup end = [&] {
          allocator::endAllocateToPool(device, recording_->memory);
          allocator::releasePool(device, recording_->memory);
        };
        issued = StatusFromTorchOr(issue);
      }
      const absl::Status waits =
          StatusFromTorch([&] { MakeWait(caller, stream); });
      // The first error says more: those of a GPU stay.
      return issued.ok() ? waits : issued;
    });
  }

  absl::Status Capture(absl::FunctionRef<absl::Status()> issue) override {
    graph_.reset();
    RETURN_IF_ERROR(StatusFromTorch(GiveBackOtherMemory));
    auto graph = std::make_unique<Graph>();
    absl::Status issued;
    const absl::Status recorded = StatusFromTorch([&] {
      const c10::cuda::CUDAStreamGuard guard(recording_->stream);
      // Other threads, such as those of NCCL, may use CUDA meanwhile.
      graph->capture_begin(recording_->memory,
                           cudaStreamCaptureModeThreadLocal);
      issued = StatusFromTorchOr(issue);
      graph->capture_end();
    });
    const absl::Status& status = issued.ok() ? recorded : issued;
    if (!status.ok()) {
      graph->CleanUpAfterFailure();
      return Explain(status);
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
  static absl::Status Explain(const absl::Status& status) {
    const std::string what = absl::StrCat(
        "this work cannot be recorded as a CUDA graph: ", status.message());
    return absl::Status(
        status.code(),
        absl::IsResourceExhausted(status)
            ? absl::StrCat(what,
                           "; without one (set execution.mode: EAGER) it "
                           "may need less")
            : absl::StrCat(what,
                           "; while it is recorded an op cannot wait for the "
                           "GPU or read a value on the host, as "
                           "Tensor::item() does. Change the op, or set "
                           "execution.mode: EAGER to run without a graph"));
  }

  const std::shared_ptr<const Recording> recording_;
  std::unique_ptr<Graph> graph_;  // null before Capture()
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
