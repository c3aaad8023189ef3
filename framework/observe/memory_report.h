#ifndef FRAMEWORK_OBSERVE_MEMORY_REPORT_H_
#define FRAMEWORK_OBSERVE_MEMORY_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

// Memory of one device in bytes, by category, predicted or measured.
struct MemoryReport {
  int64_t parameters = 0;  // master values
  int64_t shadow = 0;      // their copy in the compute dtype
  int64_t gradients = 0;
  int64_t optimizer = 0;    // moments
  int64_t activations = 0;  // results of the forward pass
  int64_t activation_gradients = 0;
  int64_t workspace = 0;            // temporary memory of ops and libraries
  int64_t other = 0;                // batches, tables, the allocator's slack
  std::optional<int64_t> capacity;  // this rank's share of the device

  int64_t total() const {
    return parameters + shadow + gradients + optimizer + activations +
           activation_gradients + workspace + other;
  }
};

// A table with one line for each nonzero category and its share of the total,
// then the total and the capacity. Ends with a newline.
std::string FormatMemoryTable(const MemoryReport& report);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_REPORT_H_
