#ifndef TESTS_ATTENTION_BACKENDS_ALLOCATION_METER_H_
#define TESTS_ATTENTION_BACKENDS_ALLOCATION_METER_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera::testing {

// Bytes that tensors on a device request from LibTorch's allocator while the
// meter lives; the allocated blocks may be larger. One meter at a time; no
// other thread may allocate when it is created or destroyed.
class AllocationMeter {
 public:
  explicit AllocationMeter(at::Device device);
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  int64_t current() const;
  int64_t peak() const;  // since the last ResetPeak()
  void ResetPeak();

 private:
  const at::Device device_;
};

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ALLOCATION_METER_H_
