#ifndef FRAMEWORK_PROGRAM_LIFETIME_H_
#define FRAMEWORK_PROGRAM_LIFETIME_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "framework/program/schedule.h"

namespace tessera {

// Where a buffer lies.
enum class Storage {
  kAllocator,  // LibTorch's allocator
  kOp,         // the same, allocated by the op that writes it
  kGradients,  // in the flat gradient buffer, while no gradient is there
  kArena,      // in one buffer of the executor, at an address that never moves
};

// Memory of one value, or of several of which each is written over the one
// before it.
struct Buffer {
  int64_t bytes = 0;
  int first = 0, last = 0;  // runs: of the first write, of the last read
  Storage storage = Storage::kAllocator;
  int64_t offset = 0;       // kGradients, kArena; bytes
  std::vector<int> values;  // in the order in which they are written
};

// A parameter's place in the flat gradient buffer, in bytes; empty when frozen.
struct GradientRange {
  int64_t begin = 0, end = 0;
};

struct LifetimeOptions {
  // Of every parameter, by its index in the program: lends the flat gradient
  // buffer, which is idle until backward writes it. Empty: does not. Valid for
  // a step of one micro-batch; with more, it holds the sums of those before.
  absl::Span<const GradientRange> gradients;
  bool arena = false;
};

// When each value of a schedule is alive and whose memory it takes. Decides the
// two questions that ops leave open: what is written over what, and what lies
// in idle gradient memory.
//
// Activations may lie where the gradient of a parameter will be, as long as
// they are read for the last time before that gradient is written. Since
// backward writes gradients in reverse execution order, most of the forward
// pass fits: eager PyTorch frees its gradients between steps, which gives the
// same peak without the advantages of a flat buffer.
struct Lifetimes {
  std::vector<Buffer> buffers;
  std::vector<int> buffer_of;  // by value; -1: given from outside
  // By value: the value whose memory it takes; -1: memory of its own.
  std::vector<int> written_over;
  // By run: values that nobody reads afterwards.
  std::vector<std::vector<int>> dead_after;
  int64_t arena_bytes = 0;

  // Alive from the forward pass into the backward pass.
  bool IsKept(const Schedule& schedule, const Buffer& buffer) const {
    return buffer.first < schedule.first_backward &&
           buffer.last >= schedule.first_backward;
  }
};

Lifetimes PlanLifetimes(const Schedule& schedule,
                        const LifetimeOptions& options = {});

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_LIFETIME_H_
