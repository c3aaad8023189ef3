#ifndef FRAMEWORK_PROGRAM_MEMORY_H_
#define FRAMEWORK_PROGRAM_MEMORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "framework/program/caching_allocator.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"

namespace tessera {

// Device memory while one run executes, in bytes, without the store's buffers
// and the inputs. Sizes are rounded up to multiples of 512, as in LibTorch's
// allocator.
struct MemoryMoment {
  int run = -1;             // index into Schedule::runs; -1: before the first
  int64_t activations = 0;  // live results of forward runs; the arena
  int64_t gradients = 0;    // live gradients of activations
  int64_t workspace = 0;    // of the run's op

  int64_t total() const { return activations + gradients + workspace; }
};

// One moment per run.
std::vector<MemoryMoment> MemoryOverTime(const Schedule& schedule,
                                         const Lifetimes& lifetimes);

// The streams that have computed matrix products when `run` has ended.
std::set<StepStream> StreamsWithProducts(const Schedule& schedule, int run);

// Workspaces, of `bytes` each, of the streams that compute matrix products. The
// allocator holds one for each, but it counts from the first product on.
struct ProductWorkspaces {
  int64_t bytes = 0, streams = 0;
};

// The first run in which the most is allocated.
struct AllocatedPeak {
  int run = 0;
  int64_t allocated = 0;  // bytes, all that the allocator holds
};

// Makes the requests of an executor that runs the schedule once, in order,
// except for the arena. nullopt if `allocator` runs out of memory, of which
// blocks then stay allocated. Outputs are freed at the end.
std::optional<AllocatedPeak> ReplayAllocations(
    const Schedule& schedule, const Lifetimes& lifetimes,
    CachingAllocator* allocator, const ProductWorkspaces& workspaces = {});

// Bytes alive while `run` executes, by kind of the op that wrote them.
struct LiveBytes {
  int64_t activations = 0, gradients = 0;
};
std::map<std::string, LiveBytes> LiveBytesByKind(const Schedule& schedule,
                                                 const Lifetimes& lifetimes,
                                                 int run);

// "the backward of block_0/ffn/w13"
std::string DescribeRun(const Schedule& schedule, int run);

// Bytes of the activations that one micro-batch keeps from the forward to the
// backward pass, whatever their storage. Recomputation reduces them.
int64_t KeptBytes(const Schedule& schedule, const Lifetimes& lifetimes);
// The part of KeptBytes() that `run` writes.
int64_t KeptBytesOf(const Schedule& schedule, const Lifetimes& lifetimes,
                    int run);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_MEMORY_H_
