#ifndef TRAINERS_CONFIG_CONFIG_LOADER_H_
#define TRAINERS_CONFIG_CONFIG_LOADER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// The config of a run: the files at `paths`, each merged on top of those before
// (see MergeTextProto()), then each of `overrides` ("--set", see
// ApplyOverride()), then checked. Only the result has to be valid: a file may
// hold a few fields for others to build on. A relative path starts where the
// user is; where there is no such file, among those that travel with the
// program ("configs/tiny_cpu.pbtxt"). Without paths it starts from the schema's
// defaults.
//
// InvalidArgument has a line for each broken rule, all at once, with the last
// place that sets the field:
//   configs/tiny_cpu.pbtxt:14:3: training.steps: must be >= 1; is 0
//   --set: training.seed: must be >= 0; is -1
// A field that no file sets has the place of the message around it.
absl::StatusOr<RunConfig> LoadRunConfig(
    absl::Span<const std::string> paths,
    absl::Span<const std::string> overrides);

// Where the value of `field` comes from in a config that was loaded like that:
// "configs/tiny_cpu.pbtxt:14:3" or "--set".
std::string ConfigSource(absl::Span<const std::string> paths,
                         absl::Span<const std::string> overrides,
                         absl::string_view field);

// 16 hexadecimal digits, equal for configs that resolve to the same values:
// XXH3 of PrintWithDefaults(config).
std::string ConfigHash(const RunConfig& config);

}  // namespace tessera

#endif  // TRAINERS_CONFIG_CONFIG_LOADER_H_
