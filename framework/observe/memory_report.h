#ifndef FRAMEWORK_OBSERVE_MEMORY_REPORT_H_
#define FRAMEWORK_OBSERVE_MEMORY_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

// Planned memory of one device in bytes, by category.
struct MemoryReport {
  int64_t parameters = 0;  // the weights, whole or in two halves
  int64_t shadow = 0;      // copies of whole ones in the compute dtype
  int64_t gradients = 0;
  int64_t optimizer = 0;    // moments
  int64_t activations = 0;  // results of the forward pass
  int64_t activation_gradients = 0;
  int64_t workspace = 0;  // temporary memory of ops
  int64_t libraries = 0;  // workspace that cuBLAS keeps
  int64_t other = 0;      // batches, tables
  int64_t slack = 0;      // what the allocator's rounding adds

  int64_t fragmentation = 0;  // reserved by the allocator, but not allocated
  // The CUDA context: what the driver and kernels take.
  int64_t context = 0;
  int64_t communication = 0;  // NCCL's kernels and buffers

  std::optional<int64_t> capacity;  // this rank's share of the device

  // As the allocator counts them.
  int64_t allocated() const {
    return parameters + shadow + gradients + optimizer + activations +
           activation_gradients + workspace + libraries + other + slack;
  }
  int64_t reserved() const { return allocated() + fragmentation; }
  // What the device must have.
  int64_t total() const { return reserved() + context + communication; }
};

// A table with one line for each nonzero category and its share of the total,
// the sums by which the allocator counts, the total and the capacity. Ends with
// a newline.
std::string FormatMemoryTable(const MemoryReport& report);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_REPORT_H_
