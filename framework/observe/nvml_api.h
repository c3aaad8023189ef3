#ifndef FRAMEWORK_OBSERVE_NVML_API_H_
#define FRAMEWORK_OBSERVE_NVML_API_H_

// The part of NVML, the library of NVIDIA's driver, that nvml.cc calls. Written
// after nvml.h of CUDA 13.0 (package nvidia-nvml-dev, "NVML API Reference
// Guide"), with NVML's own names. The library comes with the driver and is
// opened at run time; its binary interface is stable: a function that changes
// gets another suffix.

extern "C" {

using nvmlReturn_t = unsigned int;  // 0: success; nvmlErrorString() explains it
using nvmlDevice_t = struct nvmlDevice_st*;
using nvmlGpmSample_t = struct nvmlGpmSample_st*;

enum nvmlClockType_t : unsigned int { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };
enum nvmlTemperatureSensors_t : unsigned int { NVML_TEMPERATURE_GPU = 0 };

enum nvmlGpmMetricId_t : unsigned int {
  NVML_GPM_METRIC_SM_UTIL = 2,
  NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5,
  NVML_GPM_METRIC_DRAM_BW_UTIL = 10,
};

struct nvmlGpmSupport_t {
  unsigned int version;
  unsigned int isSupportedDevice;
};

struct nvmlGpmMetric_t {
  unsigned int metricId;
  nvmlReturn_t nvmlReturn;
  double value;
  struct {
    char* shortName;
    char* longName;
    char* unit;
  } metricInfo;
};

struct nvmlGpmMetricsGet_t {
  unsigned int version;
  unsigned int numMetrics;
  nvmlGpmSample_t sample1;
  nvmlGpmSample_t sample2;
  // nvml.h's array is longer in each release; numMetrics elements are used.
  nvmlGpmMetric_t metrics[477];
};

}  // extern "C"

inline constexpr unsigned int NVML_GPM_SUPPORT_VERSION = 1;
inline constexpr unsigned int NVML_GPM_METRICS_GET_VERSION = 1;

#endif  // FRAMEWORK_OBSERVE_NVML_API_H_
