#ifndef FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_
#define FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/base/violations.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// Parameters that share hyper-parameters: those whose names match one of the
// patterns. The hyper-parameters are in AdamWOptions, in the group with the
// same index.
struct ParameterGroup {
  std::string name;
  std::vector<std::string> patterns;
};

// Checks `groups` against the parameters of a store (PlaceParameters()). Adds a
// violation of "groups" for every pattern that matches no parameter, and for
// the first trainable parameter that
//   - matches no group or more than one, or
//   - shares a chunk with a parameter of another group, which happens only
//     inside a block whose members' sizes are not multiples of a chunk.
void ValidateGroups(absl::Span<const ParameterGroup> groups,
                    absl::Span<const ParameterSlice> slices,
                    const Violations& violations);

// The index in `groups` of each chunk of kAdamWChunk elements of the store's
// trainable part; empty if there are no groups. InvalidArgument for the first
// violation.
absl::StatusOr<std::vector<uint8_t>> AssignChunkGroups(
    absl::Span<const ParameterGroup> groups, const ParameterStore& store);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_
