#ifndef FRAMEWORK_OBSERVE_MEMORY_MEMORY_RECORDER_H_
#define FRAMEWORK_OBSERVE_MEMORY_MEMORY_RECORDER_H_

#include <cstddef>
#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "framework/observe/instrument.h"
#include "framework/observe/memory_record.h"

namespace tessera {

// Adds StepRecord::memory: what the device's memory held in the step that ended
// last, from every allocation of LibTorch's allocator. The first record has a
// timeline, or with every_timeline each. It follows one thread's phases.
//
// On a GPU it sees every thread's allocations and starts from what is there.
// Memory that does not come from the caching allocator is not seen: the CUDA
// context, NCCL's buffers, kernels. On a CPU it sees the allocations of the
// thread that created it, from then on, and the buffers that it is told of.
class MemoryRecorder : public Instrument {
 public:
  // The allocation in which `buffer` begins holds `category`.
  virtual void Own(MemoryCategory category, const at::Tensor& buffer) = 0;
};

struct MemoryRecorderOptions {
  size_t most_largest = 10;  // elements of MemoryRecord::largest
  bool every_timeline = false;
};

// A process has one recorder at a time. It is destroyed by the thread that
// created it.
std::unique_ptr<MemoryRecorder> CreateMemoryRecorder(
    c10::Device device, const MemoryRecorderOptions& options = {});

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_MEMORY_RECORDER_H_
