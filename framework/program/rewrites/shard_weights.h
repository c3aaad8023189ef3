#ifndef FRAMEWORK_PROGRAM_REWRITES_SHARD_WEIGHTS_H_
#define FRAMEWORK_PROGRAM_REWRITES_SHARD_WEIGHTS_H_

#include "framework/program/schedule.h"

namespace tessera {

// Divides the weights of the sections that are GradientShards::divisible among
// the ranks (ZeRO stage 3): sets Schedule::shards.sharding.zero to 3. Ops read
// them in values that a run on the communication stream gathers; `unshard` is
// the template of its task (kind, name, family, kernel). A section that is read
// again after others is gathered again. Each is gathered `depth` sections
// ahead, so usually `depth` + 1 are in memory.
//
// Works for lists with and without an update. Comes after all rewrites but
// AddDataWaits(). Does nothing with one shard.
void ShardWeights(Schedule* schedule, const Task& unshard, int depth);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_SHARD_WEIGHTS_H_
