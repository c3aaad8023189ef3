#include "trainers/run/model_run_config.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/base/violations.h"
#include "framework/precision/precision_config.h"
#include "models/model_config.h"

namespace tessera {

absl::StatusOr<RunConfig> ModelRunConfig(const Checkpoint& checkpoint) {
  RunConfig config;
  ASSIGN_OR_RETURN(const TextProtoLocations locations,
                   MergeTextProto(checkpoint.config_text(),
                                  checkpoint.config_source(), &config));
  std::vector<Violation> violations;
  Validate(config.model(), Violations(&violations).In("model"));
  Validate(config.precision(), Violations(&violations).In("precision"));
  if (violations.empty()) return config;
  std::vector<std::string> lines;
  for (const Violation& violation : violations) {
    lines.push_back(absl::StrCat(locations.Describe(violation.path), ": ",
                                 violation.path, ": ", violation.message));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

}  // namespace tessera
