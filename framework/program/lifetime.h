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

// The memory of one value, or of several values each of which overwrites the
// one before.
struct Buffer {
  int64_t bytes = 0;
  // The runs of the first write and of the last read. For what a run of another
  // stream reads: the run of the main stream that has waited for it, or the
  // number of runs. If a run of another stream writes: the first run of the
  // main stream beside which it may begin.
  int first = 0, last = 0;
  Storage storage = Storage::kAllocator;
  int64_t offset = 0;       // kGradients, kArena; bytes
  std::vector<int> values;  // in write order
  bool joint = false;       // of a JointBuffer, whose values lie side by side
};

struct LifetimeOptions {
  // Whether values may be stored in the flat gradient buffer
  // (Schedule::gradients) while no gradient of a parameter is there.
  bool lend_gradients = false;
  // Whether the others lie in the arena. Joint buffers always do, because runs
  // of several streams write them.
  bool arena = false;
};

// When each value of a schedule is alive and where it is stored. Decides what
// ops leave open: which values overwrite which, and which lie in idle gradient
// memory.
//
// An activation may lie where a parameter's gradient will be written, if its
// last read comes before that write. (If micro-batches accumulate, that is in
// the first one only.) Backward writes gradients in reverse execution order, so
// most of the forward pass fits. Eager PyTorch reaches the same peak by freeing
// its gradients between steps, but without the advantages of a flat buffer. If
// the gradients of the step before wait for their update
// (Schedule::starts_pending), an activation is written after that.
struct Lifetimes {
  std::vector<Buffer> buffers;
  std::vector<int> buffer_of;             // by value; -1: the caller's memory
  std::vector<int64_t> offset_in_buffer;  // by value; 0 unless it is joint
  // By value: the value that it overwrites; -1 if none.
  std::vector<int> written_over;
  // By run: the values whose last read is this run (Buffer::last), or the last
  // run of all.
  std::vector<std::vector<int>> dead_after;
  int64_t arena_bytes = 0;
};

// True if the buffer is alive from a forward into the backward pass.
bool IsKept(const Schedule& schedule, const Buffer& buffer);

Lifetimes PlanLifetimes(const Schedule& schedule,
                        const LifetimeOptions& options = {});

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_LIFETIME_H_
