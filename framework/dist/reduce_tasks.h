#ifndef FRAMEWORK_DIST_REDUCE_TASKS_H_
#define FRAMEWORK_DIST_REDUCE_TASKS_H_

#include <cstdint>
#include <vector>

#include "framework/cuda/device.h"
#include "framework/program/schedule.h"

namespace tessera {

// Bytes of one sum: enough to reach NCCL's bandwidth, few enough to start
// early.
inline constexpr int64_t kReduceBytes = 64 << 20;

// The sums over `ranks` of the trained part of the flat gradient buffer, as
// tasks of a step's list: slices of kReduceBytes, the same whether they are
// summed early or late, so that the bits are the same. Empty for one rank. The
// cost is that of a ring, in which each rank sends and receives
// 2 (ranks - 1) / ranks of the bytes.
std::vector<Task> ReduceTasks(const TensorType& gradients, int ranks,
                              const DeviceInfo& device);
// The sum of the losses; empty for one rank.
std::vector<Task> ReduceLossTask(int ranks, const DeviceInfo& device);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_REDUCE_TASKS_H_
