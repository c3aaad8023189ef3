#ifndef FRAMEWORK_PROGRAM_REWRITES_SHARD_GRADIENTS_H_
#define FRAMEWORK_PROGRAM_REWRITES_SHARD_GRADIENTS_H_

#include "framework/program/schedule.h"

namespace tessera {

// Divides the gradients among the ranks (ZeRO stage 2): sets
// Schedule::shards.sharding.zero to at least 2. Each micro-batch writes a
// section's gradients to values in a joint buffer. After the last of them they
// are summed over the ranks, on the communication stream, and each rank adds
// its part to what it has. A section is begun when all sums but the last have
// ended, so two take memory at a time, or three in the run that begins one,
// besides those that backward writes from its beginning to its end. With
// several micro-batches, sums are in another order than in stages 0 and 1.
//
// The list has Task::Kind::kReduce runs for the sections, at any place. Comes
// after OverlapWeightGradients() and before AddDataWaits(). Does nothing with
// one shard.
void ShardGradients(Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_SHARD_GRADIENTS_H_
