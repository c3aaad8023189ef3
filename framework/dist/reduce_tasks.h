#ifndef FRAMEWORK_DIST_REDUCE_TASKS_H_
#define FRAMEWORK_DIST_REDUCE_TASKS_H_

#include <vector>

#include "framework/cuda/device.h"
#include "framework/program/schedule.h"

namespace tessera {

// The sums over the ranks of the flat gradient buffer of type `gradients` and
// of the loss, as tasks of a step's list; none for one rank. A section is
// summed part by part, and the sums are gathered. So gradients have the same
// bits whether sums come early or late, and whether ranks keep all of them or
// their parts. The cost is that of a ring, in which each rank sends and
// receives 2 (ranks - 1) / ranks of the bytes; then replicas do so with their
// parts.
std::vector<Task> ReduceTasks(const TensorType& gradients,
                              const GradientShards& shards,
                              const DeviceInfo& device);

// A Task::Kind::kUnshard, for ShardWeights() to complete.
Task UnshardTask(const DeviceInfo& device);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_REDUCE_TASKS_H_
