#ifndef FRAMEWORK_OBSERVE_TRACE_KERNEL_COUNTERS_H_
#define FRAMEWORK_OBSERVE_TRACE_KERNEL_COUNTERS_H_

#include <cstdint>
#include <optional>

namespace tessera {

// What the hardware counted while a kernel ran, summed over launches. Absent:
// the GPU does not have the counter.
struct KernelCounters {
  int64_t launches = 0;
  double ns = 0;  // the time of the launches while they were counted
  // The sum of each launch's time, multiplied by the share of their peak at
  // which the tensor pipes worked.
  std::optional<double> tensor_ns;
  std::optional<double> dram_bytes;           // read and written
  std::optional<double> l2_hits, l2_lookups;  // requests to L2

  KernelCounters& operator+=(const KernelCounters& other);

  // Means over the launches; shares are of 1. Also absent after no time or
  // without requests.
  std::optional<double> tensor_share() const;
  std::optional<double> dram_bytes_per_launch() const;
  std::optional<double> l2_hit_share() const;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TRACE_KERNEL_COUNTERS_H_
