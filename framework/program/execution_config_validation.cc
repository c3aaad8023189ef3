#include "framework/program/execution_config_validation.h"

namespace tessera {

void Validate(const ExecutionConfig& config, Violations violations) {
  violations.Check(config.storage() != ExecutionConfig::UNSPECIFIED, "storage",
                   "must be ALLOCATOR or ARENA");
}

}  // namespace tessera
