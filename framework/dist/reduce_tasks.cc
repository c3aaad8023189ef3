#include "framework/dist/reduce_tasks.h"

#include <algorithm>
#include <cstdint>

#include "c10/core/ScalarType.h"

namespace tessera {
namespace {

// Enough to reach NCCL's bandwidth, few enough to start early.
constexpr int64_t kReduceBytes = 64 << 20;

const char* LibraryOf(const DeviceInfo& device) {
  return device.is_cuda() ? "NCCL" : "Gloo";
}

}  // namespace

std::vector<Task> ReduceTasks(const TensorType& gradients, int ranks,
                              const DeviceInfo& device) {
  if (ranks == 1) return {};
  std::vector<Task> tasks;
  const int64_t size = static_cast<int64_t>(c10::elementSize(gradients.dtype));
  const int64_t total = gradients.bytes();
  for (int64_t begin = 0; begin < total; begin += kReduceBytes) {
    const int64_t bytes = std::min(kReduceBytes, total - begin);
    tasks.push_back({.kind = Task::Kind::kReduce,
                     .name = "gradients",
                     .family = "all_reduce",
                     .kernel = LibraryOf(device),
                     .output = {{bytes / size}, gradients.dtype},
                     .cost = {.flops = static_cast<double>(bytes / size),
                              .bytes = 4 * bytes * (ranks - 1) / ranks},
                     .range = {begin, begin + bytes}});
  }
  tasks.push_back({.kind = Task::Kind::kReduceLoss,
                   .name = "loss",
                   .family = "all_reduce",
                   .kernel = LibraryOf(device),
                   .output = {{}, at::kFloat}});
  return tasks;
}

}  // namespace tessera
