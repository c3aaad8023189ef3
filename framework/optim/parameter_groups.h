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
// patterns. The hyper-parameters are AdamWOptions' group of the same index.
struct ParameterGroup {
  std::string name;
  std::vector<std::string> patterns;
};

// Checks `groups` against the parameters of a store (PlaceParameters()).
// Violations, of "groups": every pattern that matches no parameter, and the
// first trainable parameter that matches no group or two, or whose group meets
// another's inside a chunk, which only members of one block whose sizes are not
// multiples of it can do.
void ValidateGroups(absl::Span<const ParameterGroup> groups,
                    absl::Span<const ParameterSlice> slices,
                    const Violations& violations);

// The index in `groups` of each chunk of kAdamWChunk elements of the
// store's trainable part; empty where there are no groups. InvalidArgument
// for the first violation.
absl::StatusOr<std::vector<uint8_t>> AssignChunkGroups(
    absl::Span<const ParameterGroup> groups, const ParameterStore& store);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_PARAMETER_GROUPS_H_
