#include "framework/program/recompute_config_validation.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void Validate(const RecomputeConfig& config, Violations violations) {
  violations.Check(config.policy() != RecomputeConfig::UNSPECIFIED, "policy",
                   "must be NONE, BLOCK, ATTENTION or FFN");
  violations.Check(config.every() >= 1, "every",
                   absl::StrCat("must be >= 1; is ", config.every()));
}

}  // namespace tessera
