#include "framework/program/execution_config.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void Validate(const ExecutionConfig& config, Violations violations) {
  violations.Check(
      !config.has_storage() || config.storage() != ExecutionConfig::UNSPECIFIED,
      "storage", "must be ALLOCATOR or ARENA");
  violations.Check(config.mode() != ExecutionConfig::MODE_UNSPECIFIED, "mode",
                   "must be EAGER, GRAPH or AUTO");
}

void Validate(const RecomputeConfig& config, Violations violations) {
  violations.Check(config.policy() != RecomputeConfig::UNSPECIFIED, "policy",
                   "must be NONE, BLOCK, ATTENTION or FFN");
  violations.CheckAtLeast(1, config.every(), "every");
}

}  // namespace tessera
