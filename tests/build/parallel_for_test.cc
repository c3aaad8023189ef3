// at::parallel_for() is a template; it uses threads only with the right
// compiler flags, which this test checks.

#include <atomic>

#include "ATen/Parallel.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ParallelForTest, RunsOnAllThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  std::atomic<int> tasks = 0, thread_numbers = 0;
  at::parallel_for(0, 3, /*grain_size=*/1, [&](int64_t, int64_t) {
    ++tasks;
    thread_numbers += at::get_thread_num();
  });
  at::set_num_threads(threads);
  EXPECT_EQ(tasks, 3);
  EXPECT_EQ(thread_numbers, 0 + 1 + 2);
}

}  // namespace
}  // namespace tessera
