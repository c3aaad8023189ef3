#include "framework/dist/reduce_tasks.h"

#include <utility>
#include <vector>

#include "framework/cuda/device.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// Two sections, of 300 and 600 gradients in FP32, over four ranks.
std::vector<Task> Tasks(int replicas) {
  return ReduceTasks({{900}, at::kFloat},
                     {.sections = {{0, 1200}, {1200, 3600}},
                      .sharding = {.shards = 4, .replicas = replicas}},
                     CpuDevice());
}

// A rank sends and receives three quarters of a section twice. Replicas sum
// their quarters: of three, each sends and receives two thirds twice.
TEST(ReduceTasksTest, CountsWhatARankSendsAndReceives) {
  for (const auto& [replicas, bytes] :
       {std::pair{1, 4 * 900}, {3, 4 * 900 + 4 * 200}}) {
    const std::vector<Task> tasks = Tasks(replicas);
    ASSERT_EQ(tasks.size(), 3u);
    EXPECT_EQ(tasks[0].cost.bytes, bytes) << replicas;
    EXPECT_EQ(tasks[1].cost.bytes, 2 * bytes) << replicas;
    EXPECT_EQ(tasks[1].cost.flops, 600);
    EXPECT_EQ(tasks[1].range.begin, 1200);
    EXPECT_EQ(tasks[1].range.end, 3600);
    EXPECT_EQ(tasks[2].kind, Task::Kind::kReduceLoss);
  }
}

TEST(ReduceTasksTest, OneRankSumsNothing) {
  EXPECT_TRUE(ReduceTasks({{4}, at::kFloat},
                          {.sections = {{0, 16}}, .sharding = {}}, CpuDevice())
                  .empty());
}

}  // namespace
}  // namespace tessera
