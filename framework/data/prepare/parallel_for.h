#ifndef FRAMEWORK_DATA_PREPARE_PARALLEL_FOR_H_
#define FRAMEWORK_DATA_PREPARE_PARALLEL_FOR_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace tessera {

// Runs `task(i)` for i in [0, count) on up to `threads` threads.
inline void ParallelFor(int threads, size_t count,
                        absl::FunctionRef<void(size_t)> task) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) {
    others.emplace_back(work);
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_PARALLEL_FOR_H_
