#ifndef FRAMEWORK_DIST_REDUCE_TASKS_H_
#define FRAMEWORK_DIST_REDUCE_TASKS_H_

#include <vector>

#include "framework/cuda/device.h"
#include "framework/program/schedule.h"

namespace tessera {

// The sums over `ranks` of the trained part of the flat gradient buffer, and of
// the loss, as tasks of a step's list; none for one rank. Gradients are summed
// in slices of 64 MiB, the same whether early or late, so that the bits are the
// same. The cost is that of a ring, in which each rank sends and receives
// 2 (ranks - 1) / ranks of the bytes.
std::vector<Task> ReduceTasks(const TensorType& gradients, int ranks,
                              const DeviceInfo& device);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_REDUCE_TASKS_H_
