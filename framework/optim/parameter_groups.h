#ifndef FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_
#define FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/optim/optimizer_config.pb.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// The index in config.groups of each chunk of kAdamWChunk elements of the
// store's trainable part; empty when the config has no groups.
//
// InvalidArgument, naming the parameter and the group or pattern, where a
// trainable parameter matches no group or two, where a pattern matches no
// parameter, and where two groups meet inside a chunk, which only members of
// one block whose sizes are not multiples of it can do.
absl::StatusOr<std::vector<uint8_t>> AssignChunkGroups(
    const AdamWConfig& config, const ParameterStore& store);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_
