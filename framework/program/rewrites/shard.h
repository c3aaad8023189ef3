#ifndef FRAMEWORK_PROGRAM_REWRITES_SHARD_H_
#define FRAMEWORK_PROGRAM_REWRITES_SHARD_H_

#include "framework/program/schedule.h"

namespace tessera {

// Divides the optimizer's state among the ranks (ZeRO stage 1, or 2 and 3 if
// ShardGradients() and ShardWeights() follow): sets
// Schedule::shards.sharding.zero. Sums over the ranks leave each
// rank its part of a section, of which it sums the squares. Section by section,
// it updates the weights of its part, and all ranks gather them. Results keep
// their bits. For the plain list, which ends with the updates; each is of whole
// sections, and of one section if it may not be cut. Does nothing with one
// shard.
void ShardUpdate(Schedule* schedule, int zero);

// `task` restricted to `slice` of its range.
Task SliceOf(const Task& task, const GradientRange& slice);

// Makes `reduce`, a Task::Kind::kReduce, leave each rank its part of the sum.
void ScatterSums(int shards, Task* reduce);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_SHARD_H_
