#ifndef FRAMEWORK_OBSERVE_MEMORY_RECORD_H_
#define FRAMEWORK_OBSERVE_MEMORY_RECORD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace tessera {

// What device memory holds.
enum class MemoryCategory {
  kParameters,  // the weights, whole or in two halves (WeightBuffers)
  kShadow,      // copies of whole ones in the compute dtype
  // The flat gradient buffer, in which activations may lie, too (lifetime.h).
  kGradients,
  kOptimizer,            // moments
  kActivations,          // results of forward ops that outlive their op
  kActivationGradients,  // results of backward ops that outlive their op
  // Allocated and freed inside one op, or kept by a library that an op called.
  kWorkspace,
  kCommunication,
  kOther,
};
inline constexpr std::array<const char*, 9> kMemoryCategoryNames = {
    "parameters", "shadow",        "gradients",
    "optimizer",  "activations",   "activation_gradients",
    "workspace",  "communication", "other"};

using BytesByCategory = std::array<int64_t, kMemoryCategoryNames.size()>;

inline const char* NameOf(MemoryCategory category) {
  return kMemoryCategoryNames[static_cast<size_t>(category)];
}

// Bytes that the ops of a block hold: "block_3", and in it "attention/qkv". An
// op outside of any block is a block with one op.
struct BlockBytes {
  struct OpBytes {
    std::string op;
    int64_t bytes = 0;
  };
  std::string block;
  std::vector<OpBytes> ops;
};

// What memory holds at one moment.
struct MemoryBreakdown {
  // By the caching allocator's own count: of allocations, rounded up as it
  // does, and of the device memory that it has taken.
  int64_t allocated = 0, reserved = 0;
  BytesByCategory bytes{};              // as asked for
  std::vector<BlockBytes> activations;  // sum: bytes of kActivations

  // What the allocator's rounding adds.
  int64_t slack() const {
    return allocated - std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  }
  // Taken from the device, but not allocated.
  int64_t fragmentation() const { return reserved - allocated; }
};

struct PhaseMemory {
  std::string phase;      // "forward"
  int64_t allocated = 0;  // when it ends
  int64_t peak = 0;       // the most that is allocated in it
  int64_t reserved = 0;   // when it ends
};

struct LargeAllocation {
  int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::kOther;
  // Where it was allocated, "forward/block_3/attention/sdpa", and freed; empty:
  // it outlives the step.
  std::string from, to;
  // When it was allocated, since the step began, and how long it lived; on the
  // host's clock.
  double at_ms = 0, ms = 0;
};

struct MemoryTimeline {
  struct Point {
    int64_t us = 0;  // since the step began, on the host's clock
    BytesByCategory bytes{};
  };
  // At most kMaxPoints, of all allocations and frees those after which most is
  // allocated.
  static constexpr size_t kMaxPoints = 2000;
  std::vector<Point> points;
};

// The device memory of one step.
struct MemoryRecord {
  int64_t step = 0;
  std::vector<PhaseMemory> phases;  // of the step, in order
  MemoryBreakdown peak, end;        // when most is allocated; when it ends
  std::string peak_in;  // the op or phase that allocates at the peak
  // Activations that are alive when the last forward pass ends.
  std::vector<BlockBytes> saved;
  std::vector<LargeAllocation> largest;  // of the step, largest first
  MemoryTimeline timeline;               // empty unless asked for
  // In use on the GPU, by all processes, beside what the allocator reserves:
  // the CUDA context, NCCL's buffers. When the record is made.
  int64_t outside = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_MEMORY_RECORD_H_
