#ifndef TESTS_ATTENTION_BACKENDS_ALLOCATION_METER_H_
#define TESTS_ATTENTION_BACKENDS_ALLOCATION_METER_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera::testing {

// Bytes that tensors of a device ask LibTorch's allocator for while the meter
// lives: the requests, not the blocks that serve them, which may be larger.
// One meter at a time; no other thread allocates when it begins or ends.
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
