#include <cuda_runtime_api.h>
#include <cupti.h>

#include <cstdlib>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_status.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/cupti_process.h"

namespace tessera {
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

// What is recorded. The driver's calls too: cuBLAS and NVRTC's kernels are
// launched by them.
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,  // between GPUs
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER};

absl::Status CuptiStatus(CUptiResult result, absl::string_view call) {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "CUPTI cannot record kernels: ", CuptiError(result, call),
      result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
          ? "; end the other profiler (Nsight Systems, Nsight Compute) or "
            "remove observe.trace"
          : ""));
}

// Whether the kernel stands for a copy within the device: the driver makes one
// of each that a CUDA graph holds ("memcpy32_post", "memcpy128").
bool IsGraphCopy(absl::string_view symbol) {
  return absl::ConsumePrefix(&symbol, "memcpy") && !symbol.empty() &&
         absl::ascii_isdigit(symbol[0]);
}

absl::string_view CopyName(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy H2D";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy D2H";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy D2D";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy P2P";
    default:
      return "copy";
  }
}

class CuptiActivitySource : public ActivitySource {
 public:
  explicit CuptiActivitySource(int64_t max_records)
      : max_records_(max_records) {}
  ~CuptiActivitySource() override {
    if (recording_) Disable();
    absl::MutexLock lock(&mutex_);
    if (current_ == this) current_ = nullptr;
  }

  absl::Status Start() override {
    {
      absl::MutexLock lock(&mutex_);
      current_ = this;
      records_ = {};
    }
    RETURN_IF_ERROR(
        CuptiStatus(cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer),
                    "cuptiActivityRegisterCallbacks"));
    // The kernel's thread ids, as Trace::thread, instead of pthread's.
    RETURN_IF_ERROR(
        CuptiStatus(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM),
                    "cuptiSetThreadIdType"));
    recording_ = true;
    for (const CUpti_ActivityKind kind : kKinds) {
      absl::Status enabled =
          CuptiStatus(cuptiActivityEnable(kind), "cuptiActivityEnable");
      if (enabled.ok()) continue;
      Disable();
      return enabled;
    }
    return absl::OkStatus();
  }

  absl::Status Stop(Trace* trace) override {
    RETURN_IF_ERROR(
        AsStatus(cudaDeviceSynchronize(), "the device's work under a trace"));
    Disable();
    RETURN_IF_ERROR(
        CuptiStatus(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED),
                    "cuptiActivityFlushAll"));
    RETURN_IF_ERROR(DetachCupti());
    absl::MutexLock lock(&mutex_);
    NameTable names(&trace->names);
    // Names of this source's own table, numbered as in the trace.
    std::vector<int> numbers;
    for (const std::string& name : records_.names) {
      numbers.push_back(names.IndexOf(name));
    }
    for (HostCall& call : records_.calls) call.name = numbers[call.name];
    for (DeviceActivity& activity : records_.activities) {
      activity.name = numbers[activity.name];
    }
    trace->calls = std::move(records_.calls);
    trace->activities = std::move(records_.activities);
    trace->dropped += records_.dropped;
    records_ = {};
    return absl::OkStatus();
  }

  int64_t NumGraphNodes() const override {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
    if (cudaStreamGetCaptureInfo(c10::cuda::getCurrentCUDAStream(), &status,
                                 /*id=*/nullptr, &graph) != cudaSuccess ||
        status != cudaStreamCaptureStatusActive) {
      // Else the next launch would report the error of a failed recording.
      static_cast<void>(cudaGetLastError());
      return -1;
    }
    size_t count = 0;
    cudaGraphGetNodes(graph, nullptr, &count);
    std::vector<cudaGraphNode_t> nodes(count);
    cudaGraphGetNodes(graph, nodes.data(), &count);
    const int64_t counted = absl::c_count_if(nodes, [](cudaGraphNode_t node) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      cudaGraphNodeGetType(node, &type);
      return type == cudaGraphNodeTypeKernel ||
             type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset;
    });
    // The runtime cannot name the driver's own nodes, such as the writes that
    // count a rank's communications, and keeps that as its last error.
    static_cast<void>(cudaGetLastError());
    return counted;
  }

  int64_t NowNs() const override {
    uint64_t now = 0;
    cuptiGetTimestamp(&now);
    return static_cast<int64_t>(now);
  }

 private:
  struct Records {
    std::vector<std::string> names;
    std::unordered_map<std::string, int> by_symbol;
    // Names of CUDA's calls: {domain, number}.
    std::unordered_map<uint64_t, int> by_call;
    std::vector<HostCall> calls;
    std::vector<DeviceActivity> activities;
    int64_t dropped = 0;
  };

  void Disable() {
    for (const CUpti_ActivityKind kind : kKinds) cuptiActivityDisable(kind);
    recording_ = false;
  }

  static void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size,
                                  size_t* max_records) {
    // malloc's alignment, 16 bytes, is enough (ACTIVITY_RECORD_ALIGNMENT is 8).
    *buffer = static_cast<uint8_t*>(std::malloc(kBufferBytes));
    *size = *buffer == nullptr ? 0 : kBufferBytes;
    *max_records = 0;  // as many as fit
  }

  // Called by threads of CUPTI.
  static void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream,
                                  uint8_t* buffer, size_t /*size*/,
                                  size_t valid) {
    {
      absl::MutexLock lock(&mutex_);
      if (current_ != nullptr) {
        CUpti_Activity* record = nullptr;
        while (cuptiActivityGetNextRecord(buffer, valid, &record) ==
               CUPTI_SUCCESS) {
          current_->Add(record);
        }
        size_t dropped = 0;
        if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) ==
            CUPTI_SUCCESS) {
          current_->records_.dropped += static_cast<int64_t>(dropped);
        }
      }
    }
    std::free(buffer);
  }

  void Add(const CUpti_Activity* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (static_cast<int64_t>(records_.calls.size() +
                             records_.activities.size()) >= max_records_) {
      ++records_.dropped;
      return;
    }
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        AddKernel(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        AddCopy(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY2:
        AddCopy(*reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        AddFill(*reinterpret_cast<const CUpti_ActivityMemset4*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_RUNTIME:
      case CUPTI_ACTIVITY_KIND_DRIVER:
        AddCall(*reinterpret_cast<const CUpti_ActivityAPI*>(record));
        break;
      default:
        break;
    }
  }

  int NewName(std::string name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    records_.names.push_back(std::move(name));
    return static_cast<int>(records_.names.size()) - 1;
  }

  int SymbolName(const char* symbol) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string key = symbol == nullptr ? "unknown" : symbol;
    const auto found = records_.by_symbol.find(key);
    if (found != records_.by_symbol.end()) return found->second;
    return records_.by_symbol[key] = NewName(DemangledSymbol(key.c_str()));
  }

  template <typename Record>
  static DeviceActivity ActivityOf(const Record& record) {
    return {.begin_ns = static_cast<int64_t>(record.start),
            .end_ns = static_cast<int64_t>(record.end),
            .device = static_cast<int>(record.deviceId),
            .stream = static_cast<int64_t>(record.streamId),
            .correlation = record.correlationId,
            .graph_node = record.graphNodeId};
  }

  void AddKernel(const CUpti_ActivityKernel10& kernel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    DeviceActivity activity = ActivityOf(kernel);
    if (kernel.name != nullptr && IsGraphCopy(kernel.name)) {
      activity.kind = DeviceActivity::Kind::kCopy;
      activity.name = SymbolName("copy D2D");
      records_.activities.push_back(activity);
      return;
    }
    activity.name = SymbolName(kernel.name);
    activity.grid = {kernel.gridX, kernel.gridY, kernel.gridZ};
    activity.block = {kernel.blockX, kernel.blockY, kernel.blockZ};
    activity.registers = kernel.registersPerThread;
    activity.shared_bytes =
        int64_t{kernel.staticSharedMemory} + kernel.dynamicSharedMemory;
    records_.activities.push_back(activity);
  }

  template <typename Record>
  void AddCopy(const Record& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    DeviceActivity activity = ActivityOf(copy);
    activity.kind = DeviceActivity::Kind::kCopy;
    activity.name = SymbolName(CopyName(copy.copyKind).data());
    activity.bytes = static_cast<int64_t>(copy.bytes);
    records_.activities.push_back(activity);
  }

  void AddFill(const CUpti_ActivityMemset4& fill)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    DeviceActivity activity = ActivityOf(fill);
    activity.kind = DeviceActivity::Kind::kFill;
    activity.name = SymbolName("fill");
    activity.bytes = static_cast<int64_t>(fill.bytes);
    records_.activities.push_back(activity);
  }

  void AddCall(const CUpti_ActivityAPI& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const CUpti_CallbackDomain domain = call.kind == CUPTI_ACTIVITY_KIND_RUNTIME
                                            ? CUPTI_CB_DOMAIN_RUNTIME_API
                                            : CUPTI_CB_DOMAIN_DRIVER_API;
    const uint64_t key = uint64_t{static_cast<uint32_t>(domain)} << 32 |
                         static_cast<uint32_t>(call.cbid);
    auto found = records_.by_call.find(key);
    if (found == records_.by_call.end()) {
      const char* name = nullptr;
      if (cuptiGetCallbackName(domain, call.cbid, &name) != CUPTI_SUCCESS) {
        name = "unknown call";
      }
      found = records_.by_call.emplace(key, NewName(name)).first;
    }
    records_.calls.push_back({.name = found->second,
                              .begin_ns = static_cast<int64_t>(call.start),
                              .end_ns = static_cast<int64_t>(call.end),
                              .thread = call.threadId,
                              .correlation = call.correlationId});
  }

  // CUPTI's callbacks have no argument of ours.
  static absl::Mutex mutex_;
  static CuptiActivitySource* current_ ABSL_GUARDED_BY(mutex_);

  const int64_t max_records_;
  bool recording_ = false;
  Records records_ ABSL_GUARDED_BY(mutex_);
};

ABSL_CONST_INIT absl::Mutex CuptiActivitySource::mutex_(absl::kConstInit);
CuptiActivitySource* CuptiActivitySource::current_ = nullptr;

}  // namespace

std::unique_ptr<ActivitySource> CuptiActivities(int64_t max_records) {
  return std::make_unique<CuptiActivitySource>(max_records);
}

}  // namespace tessera
