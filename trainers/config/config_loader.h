#ifndef TRAINERS_CONFIG_CONFIG_LOADER_H_
#define TRAINERS_CONFIG_CONFIG_LOADER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// Loads the config of a run: merges the files at `paths` in order (see
// MergeTextProto()), each after its base (RunConfig::base), applies `overrides`
// ("--set", see ApplyOverride()) and validates the result. Only the result has
// to be valid: a file may hold a few fields that others complete. A relative
// path is looked up in the user's directory, then among the files that are
// installed with the program ("configs/tiny_cpu.pbtxt"). Without paths, all
// fields have their defaults.
//
// InvalidArgument has one line per broken rule, with the last place that sets
// the field, or that of the enclosing message if no file sets it:
//   configs/tiny_cpu.pbtxt:14:3: training.steps: must be >= 1; is 0
//   --set: training.seed: must be >= 0; is -1
absl::StatusOr<RunConfig> LoadRunConfig(
    absl::Span<const std::string> paths,
    absl::Span<const std::string> overrides);

// The source of the value of `field` in a config loaded by LoadRunConfig():
// "configs/tiny_cpu.pbtxt:14:3" or "--set".
std::string ConfigSource(absl::Span<const std::string> paths,
                         absl::Span<const std::string> overrides,
                         absl::string_view field);

// WithPlace() for such a config.
absl::Status WithConfigSource(const absl::Status& status,
                              absl::Span<const std::string> paths,
                              absl::Span<const std::string> overrides);

// 16 hexadecimal digits, equal for configs that resolve to the same values:
// XXH3 of PrintWithDefaults(config).
std::string ConfigHash(const RunConfig& config);

}  // namespace tessera

#endif  // TRAINERS_CONFIG_CONFIG_LOADER_H_
