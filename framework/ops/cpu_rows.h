#ifndef FRAMEWORK_OPS_CPU_ROWS_H_
#define FRAMEWORK_OPS_CPU_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "ATen/Parallel.h"

namespace tessera {

// Calls fn(row) for each row, on all cores. Each task covers at least 64 KiB of
// FP32.
template <typename Fn>
void ForEachRow(int64_t rows, int64_t width, const Fn& fn) {
  const int64_t grain =
      std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) fn(row);
  });
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CPU_ROWS_H_
