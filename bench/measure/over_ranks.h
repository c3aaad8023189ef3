#ifndef BENCH_MEASURE_OVER_RANKS_H_
#define BENCH_MEASURE_OVER_RANKS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "framework/dist/process_group.h"

namespace tessera {

// The largest of each value over the ranks of `group`, whose tensors are on
// `device`. Collective: every rank gives as many values.
absl::StatusOr<std::vector<double>> MaxOverRanks(std::vector<double> values,
                                                 ProcessGroup* group,
                                                 c10::Device device);

}  // namespace tessera

#endif  // BENCH_MEASURE_OVER_RANKS_H_
