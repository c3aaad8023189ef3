#ifndef TRAINERS_PLAN_LAYOUT_PLANNER_H_
#define TRAINERS_PLAN_LAYOUT_PLANNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/cuda/device.h"
#include "framework/mesh/layout.h"
#include "framework/observe/memory_report.h"
#include "trainers/config/run_config.pb.h"
#include "trainers/plan/cluster.pb.h"
#include "trainers/plan/predict_step.h"

namespace tessera {

// Reads a cluster from a text proto: a file of the user's, or one that is
// installed with the program ("configs/cluster/two_h100.pbtxt"). NotFound if
// there is neither; InvalidArgument has a line for each broken rule.
absl::StatusOr<ClusterConfig> ReadCluster(const std::string& path);

// One way to run a config on a cluster.
struct PlannedLayout {
  Layout layout;  // of rank 0
  RecomputeConfig::Policy recompute = RecomputeConfig::NONE;
  // ResourceExhausted if it does not fit; any other error: why it cannot run.
  // Then there is no memory and no time.
  absl::Status status;
  MemoryReport memory;
  StepTime time;
};

struct LayoutPlans {
  ClusterConfig cluster;
  DeviceInfo device;
  int64_t tokens_per_step = 0;
  // First those that fit, by time and then memory; then those that do not fit,
  // by memory; then those that cannot run.
  std::vector<PlannedLayout> layouts;
};

// Plans `config` with every number of ranks that is a power of two or all GPUs
// of the cluster, every ZeRO stage that is built and every policy of
// recomputation. The batch is that of the config. InvalidArgument for an
// unknown GPU, or without the figures of a link that a layout needs.
absl::StatusOr<LayoutPlans> PlanLayouts(const RunConfig& config,
                                        const ClusterConfig& cluster);

// OK if a layout fits; otherwise ResourceExhausted, or why none can run.
absl::Status CheckAnyFits(const LayoutPlans& plans);

// A table of the layouts that fit, why the first is first, and why the others
// do not fit or cannot run. Ends with a newline.
std::string FormatLayouts(const LayoutPlans& plans);

}  // namespace tessera

#endif  // TRAINERS_PLAN_LAYOUT_PLANNER_H_
