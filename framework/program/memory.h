#ifndef FRAMEWORK_PROGRAM_MEMORY_H_
#define FRAMEWORK_PROGRAM_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"

namespace tessera {

// Device bytes beyond the store's buffers and the inputs while one run works,
// in blocks as LibTorch's allocator hands them out (multiples of 512 bytes).
struct MemoryMoment {
  int run = -1;             // index into Schedule::runs; -1: before the first
  int64_t activations = 0;  // results of forward runs that are alive; the arena
  int64_t gradients = 0;    // gradients of activations that are alive
  int64_t workspace = 0;    // what the run's op and the products work in

  int64_t total() const { return activations + gradients + workspace; }
};

struct MemoryOptions {
  // Of cuBLAS, taken by the first product of all and held from then on.
  int64_t blas_workspace_bytes = 0;
};

// One moment for every run.
std::vector<MemoryMoment> MemoryOverTime(const Schedule& schedule,
                                         const Lifetimes& lifetimes,
                                         const MemoryOptions& options);
// The moment of the largest total, the first of them; all zero without a run.
MemoryMoment PeakOf(const std::vector<MemoryMoment>& moments);

// Bytes that are alive while `run` works, by kind of the op that wrote them.
struct LiveBytes {
  int64_t activations = 0, gradients = 0;
};
std::map<std::string, LiveBytes> LiveBytesByKind(const Schedule& schedule,
                                                 const Lifetimes& lifetimes,
                                                 int run);

// "the backward of block_0/ffn/w13"
std::string DescribeRun(const Schedule& schedule, int run);

// Bytes of the activations that are alive between the forward and the backward
// pass, wherever they lie: what recomputation saves.
int64_t KeptBytes(const Schedule& schedule, const Lifetimes& lifetimes);
// The same by kind of the op that wrote them.
std::map<std::string, int64_t> KeptBytesByKind(const Schedule& schedule,
                                               const Lifetimes& lifetimes);
// Bytes that `run` writes and that are kept.
int64_t KeptBytesOf(const Schedule& schedule, const Lifetimes& lifetimes,
                    int run);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_MEMORY_H_
