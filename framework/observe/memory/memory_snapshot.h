#ifndef FRAMEWORK_OBSERVE_MEMORY_MEMORY_SNAPSHOT_H_
#define FRAMEWORK_OBSERVE_MEMORY_MEMORY_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "c10/core/CachingDeviceAllocator.h"

namespace tessera {

// The phase or op that was open when memory was allocated or freed, innermost
// first. The allocator keeps it with the block and its history.
struct AllocationContext : c10::GatheredContext {
  struct Frame {
    std::string name;  // "sdpa"
    const char* kind;  // "op" or "phase"
  };
  std::vector<Frame> frames;
  int64_t step = 0;  // 0: outside of steps
};

// The part of LibTorch's SnapshotInfo that CPU builds can read, too.
struct AllocatorSnapshot {
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> segments;
  // By device; times in microseconds.
  std::vector<std::vector<c10::CachingDeviceAllocator::TraceEntry>> traces;
  std::string settings;  // PYTORCH_CUDA_ALLOC_CONF
  bool expandable_segments = false;
};

// `snapshot` as torch.cuda.memory._dump_snapshot() writes it, for
// pytorch.org/memory_viz and torch.cuda._memory_viz. Where they show stacks,
// these are of ops and phases, with the step as the line: "op:7:sdpa",
// "phase:7:attention", "phase:7:block_3". Contexts are AllocationContexts or
// null.
std::string PickleSnapshot(const AllocatorSnapshot& snapshot);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_MEMORY_SNAPSHOT_H_
