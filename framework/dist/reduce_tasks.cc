#include "framework/dist/reduce_tasks.h"

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace tessera {
namespace {

const char* LibraryOf(const DeviceInfo& device) {
  return device.is_cuda() ? "NCCL" : "Gloo";
}

}  // namespace

std::vector<Task> ReduceTasks(const TensorType& gradients,
                              const GradientShards& shards,
                              const DeviceInfo& device) {
  const int ranks = shards.sharding.shards;
  const int replicas = shards.sharding.replicas;
  if (ranks == 1) return {};
  std::vector<Task> tasks;
  const int64_t size = static_cast<int64_t>(c10::elementSize(gradients.dtype));
  for (const GradientRange& section : shards.sections) {
    const int64_t bytes = section.end - section.begin;
    tasks.push_back(
        {.kind = Task::Kind::kReduce,
         .name = "gradients",
         .family = "reduce_scatter, all_gather",
         .kernel = LibraryOf(device),
         .output = {{bytes / size}, gradients.dtype},
         .cost = {.flops = static_cast<double>(bytes / size),
                  .bytes = 4 * bytes * (ranks - 1) / ranks +
                           4 * bytes / ranks * (replicas - 1) / replicas},
         .range = section});
  }
  tasks.push_back({.kind = Task::Kind::kReduceLoss,
                   .name = "loss",
                   .family = "all_reduce",
                   .kernel = LibraryOf(device),
                   .output = {{}, at::kFloat}});
  return tasks;
}

Task UnshardTask(const DeviceInfo& device) {
  return {.kind = Task::Kind::kUnshard,
          .name = "whole weights",
          .family = "all_gather",
          .kernel = LibraryOf(device)};
}

}  // namespace tessera
