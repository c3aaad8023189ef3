#ifndef FRAMEWORK_OBSERVE_MEMORY_MEMORY_RECORDER_H_
#define FRAMEWORK_OBSERVE_MEMORY_MEMORY_RECORDER_H_

#include <memory>

#include "c10/core/Device.h"
#include "framework/observe/instrument.h"
#include "framework/observe/memory/memory_record.h"

namespace tessera {

// Adds StepRecord::memory: what a GPU's memory held in the step that ended
// last, from every allocation of LibTorch's caching allocator. The first record
// has a timeline. It follows one thread's phases and every thread's
// allocations.
//
// Memory that does not come from the allocator is not seen: the CUDA context,
// NCCL's buffers, kernels.
class MemoryRecorder : public Instrument {
 public:
  // The allocation that contains `address` holds `category`, from its start on.
  virtual void Own(MemoryCategory category, const void* address) = 0;
};

// Only CUDA builds have it (framework/cuda/cuda_build.h). A process has one
// recorder at a time.
std::unique_ptr<MemoryRecorder> CreateMemoryRecorder(c10::Device device);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_MEMORY_RECORDER_H_
