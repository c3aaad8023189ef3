#ifndef FRAMEWORK_PROGRAM_REWRITES_SHARD_WEIGHTS_H_
#define FRAMEWORK_PROGRAM_REWRITES_SHARD_WEIGHTS_H_

#include "framework/program/schedule.h"

namespace tessera {

// Divides the weights of the sections that are GradientShards::divisible among
// the ranks (ZeRO stage 3): sets Schedule::shards.sharding.zero to 3. Ops read
// them in values that a run on the communication stream fetches: `fetch`, of
// which kind, name, family and kernel are used. A section that is read again
// after others is fetched again. While ops read one section, the next `depth`
// that they will read are fetched, so `depth` + 1 take memory at a time.
//
// Works for lists with and without an update. Comes after all rewrites but
// AddDataWaits(). Does nothing with one shard.
void ShardWeights(Schedule* schedule, const Task& fetch, int depth);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_SHARD_WEIGHTS_H_
