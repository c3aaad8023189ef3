#include <dlfcn.h>

#include <array>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/base/status_macros.h"
#include "framework/observe/gpu_sensors.h"
#include "framework/observe/nvml_api.h"

namespace tessera {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";

// Bits of nvmlDeviceGetCurrentClocksThrottleReasons(), which also has some that
// hold nothing back (an idle GPU).
struct ThrottleReason {
  unsigned long long bit;
  absl::string_view name;
};
constexpr std::array<ThrottleReason, 9> kThrottleReasons = {{
    {0x2, "application_clocks"},
    {0x4, "power_cap"},
    {0x8, "hardware_slowdown"},
    {0x10, "sync_boost"},
    {0x20, "thermal"},
    {0x40, "hardware_thermal"},
    {0x80, "power_brake"},
    {0x200, "board_limit"},
    {0x400, "reliability"},
}};

// Functions of NVML; null if the driver's library lacks it.
struct Functions {
  explicit Functions(void* library) {
    Find(library, "nvmlInit_v2", &init);
    Find(library, "nvmlShutdown", &shutdown);
    Find(library, "nvmlErrorString", &error_string);
    Find(library, "nvmlDeviceGetHandleByUUID", &get_device);
    Find(library, "nvmlDeviceGetClockInfo", &get_clock);
    Find(library, "nvmlDeviceGetMaxClockInfo", &get_max_clock);
    Find(library, "nvmlDeviceGetTemperature", &get_temperature);
    Find(library, "nvmlDeviceGetCurrentClocksThrottleReasons",
         &get_throttle_reasons);
    Find(library, "nvmlDeviceGetTotalEnergyConsumption", &get_energy);
    Find(library, "nvmlGpmQueryDeviceSupport", &query_gpm);
    Find(library, "nvmlGpmSampleAlloc", &alloc_sample);
    Find(library, "nvmlGpmSampleFree", &free_sample);
    Find(library, "nvmlGpmSampleGet", &get_sample);
    Find(library, "nvmlGpmMetricsGet", &get_metrics);
  }

  nvmlReturn_t (*init)() = nullptr;
  nvmlReturn_t (*shutdown)() = nullptr;
  const char* (*error_string)(nvmlReturn_t) = nullptr;
  nvmlReturn_t (*get_device)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*get_clock)(nvmlDevice_t, nvmlClockType_t,
                            unsigned int*) = nullptr;
  nvmlReturn_t (*get_max_clock)(nvmlDevice_t, nvmlClockType_t,
                                unsigned int*) = nullptr;
  nvmlReturn_t (*get_temperature)(nvmlDevice_t, nvmlTemperatureSensors_t,
                                  unsigned int*) = nullptr;
  nvmlReturn_t (*get_throttle_reasons)(nvmlDevice_t,
                                       unsigned long long*) = nullptr;
  nvmlReturn_t (*get_energy)(nvmlDevice_t, unsigned long long*) = nullptr;
  nvmlReturn_t (*query_gpm)(nvmlDevice_t, nvmlGpmSupport_t*) = nullptr;
  nvmlReturn_t (*alloc_sample)(nvmlGpmSample_t*) = nullptr;
  nvmlReturn_t (*free_sample)(nvmlGpmSample_t) = nullptr;
  nvmlReturn_t (*get_sample)(nvmlDevice_t, nvmlGpmSample_t) = nullptr;
  nvmlReturn_t (*get_metrics)(nvmlGpmMetricsGet_t*) = nullptr;

 private:
  template <typename Function>
  static void Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

class Nvml : public GpuSensors {
 public:
  static absl::StatusOr<std::unique_ptr<GpuSensors>> Open(
      const Functions& functions, const std::string& uuid) {
    auto nvml = absl::WrapUnique(new Nvml(functions));
    RETURN_IF_ERROR(nvml->Call(functions.init));
    nvml->initialized_ = true;
    // CUDA prints no prefix; NVML wants the one that fits.
    absl::Status status;
    for (const char* prefix : {"GPU-", "MIG-"}) {
      status = nvml->Call(functions.get_device,
                          absl::StrCat(prefix, uuid).c_str(), &nvml->device_);
      if (status.ok()) break;
    }
    RETURN_IF_ERROR(status);
    nvml->AllocSamples();
    return nvml;
  }

  ~Nvml() override {
    for (const nvmlGpmSample_t sample : {begin_, spare_}) {
      if (sample != nullptr) functions_.free_sample(sample);
    }
    if (initialized_) functions_.shutdown();
  }

  absl::StatusOr<double> SmMhz() override {
    return Number<unsigned int>(functions_.get_clock, NVML_CLOCK_SM);
  }
  absl::StatusOr<double> MemoryMhz() override {
    return Number<unsigned int>(functions_.get_clock, NVML_CLOCK_MEM);
  }
  absl::StatusOr<double> MaxSmMhz() override {
    return Number<unsigned int>(functions_.get_max_clock, NVML_CLOCK_SM);
  }
  absl::StatusOr<double> Celsius() override {
    return Number<unsigned int>(functions_.get_temperature,
                                NVML_TEMPERATURE_GPU);
  }
  absl::StatusOr<double> EnergyJoules() override {
    ASSIGN_OR_RETURN(const double millijoules,
                     Number<unsigned long long>(functions_.get_energy));
    return millijoules * 1e-3;
  }

  absl::StatusOr<std::vector<std::string>> ThrottleReasons() override {
    unsigned long long bits = 0;
    RETURN_IF_ERROR(Call(functions_.get_throttle_reasons, device_, &bits));
    std::vector<std::string> names;
    for (const ThrottleReason& reason : kThrottleReasons) {
      if ((bits & reason.bit) != 0) names.emplace_back(reason.name);
    }
    return names;
  }

  absl::Status StartInterval() override {
    RETURN_IF_ERROR(gpm_status_);
    return Call(functions_.get_sample, device_, begin_);
  }

  absl::StatusOr<GpuUtilization> Utilization() override {
    RETURN_IF_ERROR(gpm_status_);
    RETURN_IF_ERROR(Call(functions_.get_sample, device_, spare_));
    // The new sample also begins the next interval: taking one is slow (9 ms on
    // an H200).
    std::swap(begin_, spare_);
    auto get = std::make_unique<nvmlGpmMetricsGet_t>();
    get->version = NVML_GPM_METRICS_GET_VERSION;
    get->numMetrics = 3;
    get->sample1 = spare_;
    get->sample2 = begin_;
    get->metrics[0].metricId = NVML_GPM_METRIC_SM_UTIL;
    get->metrics[1].metricId = NVML_GPM_METRIC_ANY_TENSOR_UTIL;
    get->metrics[2].metricId = NVML_GPM_METRIC_DRAM_BW_UTIL;
    RETURN_IF_ERROR(Call(functions_.get_metrics, get.get()));
    for (unsigned int i = 0; i < get->numMetrics; ++i) {
      RETURN_IF_ERROR(AsStatus(get->metrics[i].nvmlReturn));
    }
    return GpuUtilization{.sm = get->metrics[0].value,
                          .tensor = get->metrics[1].value,
                          .dram = get->metrics[2].value};
  }

 private:
  explicit Nvml(const Functions& functions) : functions_(functions) {}

  void AllocSamples() {
    gpm_status_ = [&]() -> absl::Status {
      nvmlGpmSupport_t support{.version = NVML_GPM_SUPPORT_VERSION};
      RETURN_IF_ERROR(Call(functions_.query_gpm, device_, &support));
      if (support.isSupportedDevice == 0) {
        return absl::UnimplementedError("needs a Hopper GPU or a later one");
      }
      RETURN_IF_ERROR(Call(functions_.alloc_sample, &begin_));
      return Call(functions_.alloc_sample, &spare_);
    }();
  }

  absl::Status AsStatus(nvmlReturn_t code) const {
    if (code == 0) return absl::OkStatus();
    return absl::UnavailableError(
        functions_.error_string == nullptr
            ? absl::StrCat("NVML error ", code)
            : std::string(functions_.error_string(code)));
  }

  template <typename... Parameters, typename... Arguments>
  absl::Status Call(nvmlReturn_t (*function)(Parameters...),
                    Arguments... arguments) const {
    if (function == nullptr) {
      return absl::UnimplementedError("the driver is too old for it");
    }
    return AsStatus(function(arguments...));
  }

  // What `function` writes into its last argument.
  template <typename Result, typename... Parameters, typename... Arguments>
  absl::StatusOr<double> Number(nvmlReturn_t (*function)(Parameters...),
                                Arguments... arguments) const {
    Result result = 0;
    RETURN_IF_ERROR(Call(function, device_, arguments..., &result));
    return static_cast<double>(result);
  }

  const Functions functions_;
  bool initialized_ = false;
  nvmlDevice_t device_ = nullptr;
  absl::Status gpm_status_;  // why there are no samples
  nvmlGpmSample_t begin_ = nullptr, spare_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuSensors>> OpenNvml(const std::string& uuid) {
  // Never closed: the driver's libraries keep threads and state.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  return Nvml::Open(Functions(library), uuid);
}

}  // namespace tessera
