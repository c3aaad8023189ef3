#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <cupti_profiler_host.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_status.h"
#include "framework/cuda/driver_function.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/cupti_process.h"

namespace tessera {
namespace {

// CUPTI's names. From Ampere on the hardware counts all of them while a kernel
// runs once. With sectors instead of requests of L2 each kernel would have to
// run twice, with its memory saved and restored in between, which costs memory
// and time and leaves other data in L2.
constexpr char kTime[] = "gpu__time_duration.sum";
constexpr char kTensorPercent[] =
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed";
constexpr char kDramBytes[] = "dram__bytes.sum";
constexpr char kL2Hits[] = "lts__t_requests_lookup_hit.sum";
constexpr char kL2Misses[] = "lts__t_requests_lookup_miss.sum";
constexpr const char* kMetrics[] = {kTime, kTensorPercent, kDramBytes, kL2Hits,
                                    kL2Misses};

// CUPTI has room for two to three thousand kernels at once.
constexpr size_t kRoom = 1000;

// The calls that launch a kernel.
constexpr CUpti_CallbackId kRuntimeLaunches[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000,
    CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_ptsz_v13000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000};
constexpr CUpti_CallbackId kDriverLaunches[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz};

absl::Status CuptiStatus(CUptiResult result, absl::string_view call) {
  switch (result) {
    case CUPTI_SUCCESS:
      return absl::OkStatus();
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return absl::PermissionDeniedError(CuptiError(result, call));
    default:
      return absl::FailedPreconditionError(CuptiError(result, call));
  }
}

// The parameters of a call of CUPTI, which begin with their size.
template <typename Params>
Params Sized(size_t size) {
  Params params = {};
  params.structSize = size;
  return params;
}
#define CUPTI_PARAMS(type, name) type name = Sized<type>(type##_STRUCT_SIZE)
#define CUPTI_CALL(call, params) \
  RETURN_IF_ERROR(CuptiStatus(call(&(params)), #call))

absl::StatusOr<CUcontext> CurrentContext() {
  ASSIGN_OR_RETURN(
      const auto current,
      DriverFunction<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent"));
  CUcontext context = nullptr;
  if (current(&context) != CUDA_SUCCESS || context == nullptr) {
    return absl::FailedPreconditionError("this thread has no CUDA context");
  }
  return context;
}

class CuptiCounterSource : public ActivitySource {
 public:
  explicit CuptiCounterSource(int64_t kernels_at_once)
      : kernels_at_once_(static_cast<size_t>(kernels_at_once)) {}
  ~CuptiCounterSource() override { End(); }

  absl::Status Start() override {
    status_ = Begin();
    if (!status_.ok()) End();
    return status_;
  }

  void AfterOp() override {
    {
      absl::MutexLock lock(&mutex_);
      if (launches_.size() - counters_.size() < kernels_at_once_) return;
    }
    if (status_.ok()) status_ = EndSession();
    if (status_.ok()) status_ = BeginSession();
  }

  absl::Status Stop(Trace* trace) override {
    if (status_.ok()) status_ = EndSession();
    End();
    RETURN_IF_ERROR(status_);
    absl::MutexLock lock(&mutex_);
    NameTable names(&trace->names);
    for (size_t i = 0; i < launches_.size(); ++i) {
      AddKernel(launches_[i], counters_[i], static_cast<uint32_t>(i + 1),
                &names, trace);
    }
    return absl::OkStatus();
  }

  int64_t NowNs() const override { return absl::GetCurrentTimeNanos(); }

 private:
  struct KernelLaunch {
    std::string symbol;
    int64_t ns = 0;
    uint32_t thread = 0;
  };

  absl::Status Begin() {
    {
      absl::MutexLock lock(&mutex_);
      launches_.clear();
      counters_.clear();
    }
    CUPTI_PARAMS(CUpti_Profiler_Initialize_Params, initialize);
    CUPTI_CALL(cuptiProfilerInitialize, initialize);
    is_initialized_ = true;
    ASSIGN_OR_RETURN(context_, CurrentContext());
    RETURN_IF_ERROR(ConfigureMetrics());
    RETURN_IF_ERROR(FollowLaunches());
    return BeginSession();
  }

  absl::Status BeginSession() {
    CUPTI_PARAMS(CUpti_RangeProfiler_Enable_Params, enable);
    enable.ctx = context_;
    CUPTI_CALL(cuptiRangeProfilerEnable, enable);
    profiler_ = enable.pRangeProfilerObject;
    RETURN_IF_ERROR(ConfigureRanges());
    CUPTI_PARAMS(CUpti_RangeProfiler_Start_Params, start);
    start.pRangeProfilerObject = profiler_;
    CUPTI_CALL(cuptiRangeProfilerStart, start);
    return absl::OkStatus();
  }

  // Adds to counters_ those of the kernels that were launched since
  // BeginSession().
  absl::Status EndSession() {
    RETURN_IF_ERROR(
        AsStatus(cudaDeviceSynchronize(), "the device's work while counting"));
    CUPTI_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
    stop.pRangeProfilerObject = profiler_;
    CUPTI_CALL(cuptiRangeProfilerStop, stop);
    CUPTI_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
    decode.pRangeProfilerObject = profiler_;
    CUPTI_CALL(cuptiRangeProfilerDecodeData, decode);
    CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info);
    info.pCounterDataImage = counter_image_.data();
    info.counterDataImageSize = counter_image_.size();
    CUPTI_CALL(cuptiRangeProfilerGetCounterDataInfo, info);
    Disable();
    absl::MutexLock lock(&mutex_);
    const size_t launched = launches_.size() - counters_.size();
    if (info.numTotalRanges != launched) {
      return absl::FailedPreconditionError(absl::StrCat(
          "CUPTI counted ", info.numTotalRanges, " kernels and dropped ",
          decode.numOfRangeDropped, ", but ", launched, " were launched"));
    }
    for (size_t range = 0; range < launched; ++range) {
      ASSIGN_OR_RETURN(const KernelCounters counters, CountersOf(range));
      counters_.push_back(counters);
    }
    return absl::OkStatus();
  }

  // Sets host_, metrics_ and config_image_.
  absl::Status ConfigureMetrics() {
    int device = 0;
    RETURN_IF_ERROR(AsStatus(cudaGetDevice(&device), "cudaGetDevice()"));
    CUPTI_PARAMS(CUpti_Device_GetChipName_Params, chip);
    chip.deviceIndex = static_cast<size_t>(device);
    CUPTI_CALL(cuptiDeviceGetChipName, chip);
    CUPTI_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, available);
    available.ctx = context_;
    CUPTI_CALL(cuptiProfilerGetCounterAvailability, available);
    availability_image_.resize(available.counterAvailabilityImageSize);
    available.pCounterAvailabilityImage = availability_image_.data();
    CUPTI_CALL(cuptiProfilerGetCounterAvailability, available);

    CUPTI_PARAMS(CUpti_Profiler_Host_Initialize_Params, host);
    host.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    host.pChipName = chip.pChipName;
    host.pCounterAvailabilityImage = availability_image_.data();
    CUPTI_CALL(cuptiProfilerHostInitialize, host);
    host_ = host.pHostObject;
    metrics_.clear();
    std::copy_if(std::begin(kMetrics), std::end(kMetrics),
                 std::back_inserter(metrics_), [&](const char* metric) {
                   CUPTI_PARAMS(CUpti_Profiler_Host_GetMetricProperties_Params,
                                properties);
                   properties.pHostObject = host_;
                   properties.pMetricName = metric;
                   return cuptiProfilerHostGetMetricProperties(&properties) ==
                          CUPTI_SUCCESS;
                 });
    CUPTI_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
    add.pHostObject = host_;
    add.ppMetricNames = metrics_.data();
    add.numMetrics = metrics_.size();
    CUPTI_CALL(cuptiProfilerHostConfigAddMetrics, add);
    CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = host_;
    CUPTI_CALL(cuptiProfilerHostGetConfigImageSize, size);
    config_image_.resize(size.configImageSize);
    CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
    image.pHostObject = host_;
    image.configImageSize = config_image_.size();
    image.pConfigImage = config_image_.data();
    CUPTI_CALL(cuptiProfilerHostGetConfigImage, image);
    return absl::OkStatus();
  }

  // A range for each kernel. Sets counter_image_.
  absl::Status ConfigureRanges() {
    CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
    size.pRangeProfilerObject = profiler_;
    size.pMetricNames = metrics_.data();
    size.numMetrics = metrics_.size();
    size.maxNumOfRanges = kRoom;
    size.maxNumRangeTreeNodes = kRoom;
    CUPTI_CALL(cuptiRangeProfilerGetCounterDataSize, size);
    counter_image_.assign(size.counterDataSize, 0);
    CUPTI_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, image);
    image.pRangeProfilerObject = profiler_;
    image.counterDataSize = counter_image_.size();
    image.pCounterData = counter_image_.data();
    CUPTI_CALL(cuptiRangeProfilerCounterDataImageInitialize, image);
    CUPTI_PARAMS(CUpti_RangeProfiler_SetConfig_Params, config);
    config.pRangeProfilerObject = profiler_;
    config.configSize = config_image_.size();
    config.pConfig = config_image_.data();
    config.counterDataImageSize = counter_image_.size();
    config.pCounterDataImage = counter_image_.data();
    config.range = CUPTI_AutoRange;
    config.replayMode = CUPTI_KernelReplay;
    config.maxRangesPerPass = kRoom;
    config.numNestingLevels = 1;
    config.minNestingLevel = 1;
    config.targetNestingLevel = 1;
    CUPTI_CALL(cuptiRangeProfilerSetConfig, config);
    return absl::OkStatus();
  }

  // CUPTI numbers the kernels, but does not name them.
  absl::Status FollowLaunches() {
    RETURN_IF_ERROR(CuptiStatus(cuptiSubscribe(&subscriber_, OnLaunch, this),
                                "cuptiSubscribe"));
    const auto enable = [&](CUpti_CallbackDomain domain, CUpti_CallbackId id) {
      return CuptiStatus(cuptiEnableCallback(1, subscriber_, domain, id),
                         "cuptiEnableCallback");
    };
    for (const CUpti_CallbackId id : kRuntimeLaunches) {
      RETURN_IF_ERROR(enable(CUPTI_CB_DOMAIN_RUNTIME_API, id));
    }
    for (const CUpti_CallbackId id : kDriverLaunches) {
      RETURN_IF_ERROR(enable(CUPTI_CB_DOMAIN_DRIVER_API, id));
    }
    return absl::OkStatus();
  }

  static void CUPTIAPI OnLaunch(void* self, CUpti_CallbackDomain,
                                CUpti_CallbackId, const void* data) {
    static_cast<CuptiCounterSource*>(self)->AddLaunch(
        *static_cast<const CUpti_CallbackData*>(data));
  }

  // A launch by the runtime calls the driver: both are one launch.
  void AddLaunch(const CUpti_CallbackData& call) {
    thread_local int depth = 0;
    if (call.callbackSite == CUPTI_API_EXIT) {
      depth = std::max(depth - 1, 0);  // 0: the call began before us
      return;
    }
    absl::MutexLock lock(&mutex_);
    if (depth++ == 0) {
      launches_.push_back({.ns = NowNs(), .thread = CurrentThreadId()});
    }
    std::string& symbol = launches_.back().symbol;
    if (symbol.empty() && call.symbolName != nullptr) symbol = call.symbolName;
  }

  absl::StatusOr<KernelCounters> CountersOf(size_t range) {
    std::vector<double> values(metrics_.size());
    CUPTI_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, evaluate);
    evaluate.pHostObject = host_;
    evaluate.pCounterDataImage = counter_image_.data();
    evaluate.counterDataImageSize = counter_image_.size();
    evaluate.rangeIndex = range;
    evaluate.ppMetricNames = metrics_.data();
    evaluate.numMetrics = metrics_.size();
    evaluate.pMetricValues = values.data();
    CUPTI_CALL(cuptiProfilerHostEvaluateToGpuValues, evaluate);
    const auto value = [&](const char* metric) -> std::optional<double> {
      const auto found = std::find(metrics_.begin(), metrics_.end(), metric);
      if (found == metrics_.end()) return std::nullopt;
      return values[found - metrics_.begin()];
    };
    KernelCounters counters{.launches = 1,
                            .ns = value(kTime).value_or(0),
                            .dram_bytes = value(kDramBytes)};
    if (const auto percent = value(kTensorPercent)) {
      counters.tensor_ns = counters.ns * *percent / 100;
    }
    const auto hits = value(kL2Hits), misses = value(kL2Misses);
    if (hits.has_value() && misses.has_value()) {
      counters.l2_hits = hits;
      counters.l2_lookups = *hits + *misses;
    }
    return counters;
  }

  static void AddKernel(const KernelLaunch& launch,
                        const KernelCounters& counters, uint32_t correlation,
                        NameTable* names, Trace* trace) {
    const int name = names->IndexOf(DemangledSymbol(launch.symbol.c_str()));
    trace->calls.push_back({.name = name,
                            .begin_ns = launch.ns,
                            .end_ns = launch.ns,
                            .thread = launch.thread,
                            .correlation = correlation});
    trace->activities.push_back(
        {.name = name,
         .begin_ns = launch.ns,
         .end_ns = launch.ns + static_cast<int64_t>(counters.ns),
         .correlation = correlation});
    trace->counters.emplace(correlation, counters);
  }

  void Disable() {
    if (profiler_ == nullptr) return;
    CUPTI_PARAMS(CUpti_RangeProfiler_Disable_Params, disable);
    disable.pRangeProfilerObject = std::exchange(profiler_, nullptr);
    cuptiRangeProfilerDisable(&disable);
  }

  // Undoes what Begin() did, as far as it came, and detaches CUPTI.
  void End() {
    Disable();
    if (subscriber_ != nullptr) {
      cuptiUnsubscribe(std::exchange(subscriber_, nullptr));
    }
    if (host_ != nullptr) {
      CUPTI_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, deinitialize);
      deinitialize.pHostObject = std::exchange(host_, nullptr);
      cuptiProfilerHostDeinitialize(&deinitialize);
    }
    if (!std::exchange(is_initialized_, false)) return;
    CUPTI_PARAMS(CUpti_Profiler_DeInitialize_Params, deinitialize);
    cuptiProfilerDeInitialize(&deinitialize);
    DetachCupti().IgnoreError();
  }

  const size_t kernels_at_once_;
  absl::Status status_;
  bool is_initialized_ = false;
  CUcontext context_ = nullptr;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<const char*> metrics_;  // of kMetrics, those that the GPU has
  std::vector<uint8_t> availability_image_, config_image_, counter_image_;
  absl::Mutex mutex_;
  std::vector<KernelLaunch> launches_ ABSL_GUARDED_BY(mutex_);
  // In the order of launches_; those since BeginSession() are still missing.
  std::vector<KernelCounters> counters_ ABSL_GUARDED_BY(mutex_);
};

#undef CUPTI_CALL
#undef CUPTI_PARAMS

}  // namespace

std::unique_ptr<ActivitySource> CuptiKernelCounters(int64_t kernels_at_once) {
  return std::make_unique<CuptiCounterSource>(kernels_at_once);
}

}  // namespace tessera
