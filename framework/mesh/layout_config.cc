#include "framework/mesh/layout_config.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

void Validate(const LayoutConfig& config, Violations violations) {
  violations.Check(config.zero() >= 0 && config.zero() <= 3, "zero",
                   absl::StrCat("must be 0, 1, 2 or 3; is ", config.zero()));
  const auto check_degree = [&](bool given, absl::string_view field,
                                int degree) {
    violations.Check(!given || degree >= 1, field,
                     absl::StrCat("must be >= 1; is ", degree));
  };
  check_degree(config.has_replica(), "replica", config.replica());
  check_degree(config.has_shard(), "shard", config.shard());
  const auto check_not_built = [&](absl::string_view field, int degree) {
    violations.Check(degree == 1, field,
                     absl::StrCat("is ", degree,
                                  ", but only 1 is supported; use "
                                  "layout.replica or layout.shard"));
  };
  check_not_built("tensor", config.tensor());
  check_not_built("context", config.context());
  check_not_built("pipeline", config.pipeline());
}

LayoutOptions LayoutOptionsOf(const LayoutConfig& config) {
  LayoutOptions options = {.zero = config.zero()};
  if (config.has_replica()) options.replica = config.replica();
  if (config.has_shard()) options.shard = config.shard();
  return options;
}

}  // namespace tessera
