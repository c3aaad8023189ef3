#ifndef TRAINERS_RUN_NUMBERS_OF_RANKS_H_
#define TRAINERS_RUN_NUMBERS_OF_RANKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "framework/dist/process_group.h"

namespace tessera {

// The number that each rank gives, by rank, on every rank. Collective; its
// tensors are on `device`.
absl::StatusOr<std::vector<int64_t>> NumbersOfRanks(int64_t own,
                                                    c10::Device device,
                                                    ProcessGroup* group);

}  // namespace tessera

#endif  // TRAINERS_RUN_NUMBERS_OF_RANKS_H_
