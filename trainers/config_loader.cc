#include "trainers/config_loader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "framework/base/file.h"
#include "framework/base/proto_override.h"
#include "framework/base/runtime_files.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "framework/base/violations.h"
#include "trainers/run_config_validation.h"
#include "xxhash.h"

namespace tessera {
namespace {

// Where the values of a config come from.
struct Sources {
  TextProtoLocations file;
  std::vector<std::string> overridden;  // paths
};

absl::StatusOr<std::string> FindConfig(absl::string_view path) {
  std::string user_path = UserPath(path);
  if (FileExists(user_path) || absl::StartsWith(path, "/")) return user_path;
  absl::StatusOr<std::string> found = FindRuntimeFile(path);
  if (found.ok()) return found;
  return absl::NotFoundError(absl::StrCat("no config ", user_path, "; and ",
                                          found.status().message()));
}

absl::StatusOr<TextProtoLocations> ReadConfig(absl::string_view path,
                                              RunConfig* config) {
  if (path.empty()) {
    return TextProtoLocations("defaults", *RunConfig::descriptor());
  }
  ASSIGN_OR_RETURN(const std::string file, FindConfig(path));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  // Messages name the file as the user does.
  return MergeTextProto(text, path, config);
}

absl::Status ApplyOverrides(absl::Span<const std::string> overrides,
                            RunConfig* config,
                            std::vector<std::string>* paths) {
  std::vector<std::string> errors;
  for (const std::string& assignment : overrides) {
    absl::StatusOr<std::string> path = ApplyOverride(assignment, config);
    if (path.ok()) {
      paths->push_back(*std::move(path));
    } else {
      errors.emplace_back(path.status().message());
    }
  }
  if (errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

// Whether `path` was set by an override, by itself or with what is around it.
bool IsOverridden(absl::string_view path,
                  const std::vector<std::string>& overridden) {
  return std::any_of(
      overridden.begin(), overridden.end(), [path](const std::string& set) {
        return path == set || absl::StartsWith(path, absl::StrCat(set, ".")) ||
               absl::StartsWith(path, absl::StrCat(set, "["));
      });
}

std::string Describe(const Violation& violation, const Sources& sources) {
  const std::string& path = violation.path;
  const bool overridden = IsOverridden(path, sources.overridden);
  return absl::StrCat(
      overridden ? "--set" : sources.file.Describe(path), ": ", path, ": ",
      // A line for each violation, whatever the value that it shows.
      absl::StrReplaceAll(violation.message, {{"\n", "\\n"}}),
      !overridden && sources.file.IsDefault(path) ? " (the default)" : "");
}

}  // namespace

absl::StatusOr<RunConfig> LoadRunConfig(
    absl::string_view path, absl::Span<const std::string> overrides) {
  RunConfig config;
  ASSIGN_OR_RETURN(TextProtoLocations locations, ReadConfig(path, &config));
  Sources sources{std::move(locations)};
  RETURN_IF_ERROR(ApplyOverrides(overrides, &config, &sources.overridden));
  std::vector<Violation> violations;
  Validate(config, Violations(&violations));
  if (violations.empty()) return config;
  std::vector<std::string> lines;
  for (const Violation& violation : violations) {
    lines.push_back(Describe(violation, sources));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

std::string ConfigHash(const RunConfig& config) {
  const std::string text = PrintWithDefaults(config);
  return absl::StrFormat("%016x", XXH3_64bits(text.data(), text.size()));
}

}  // namespace tessera
