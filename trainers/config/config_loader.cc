#include "trainers/config/config_loader.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "framework/base/field_error.h"
#include "framework/base/file.h"
#include "framework/base/nearest_name.h"
#include "framework/base/proto_override.h"
#include "framework/base/runtime_files.h"
#include "framework/base/shorten.h"
#include "framework/base/status_macros.h"
#include "framework/base/terminal.h"
#include "framework/base/text_proto.h"
#include "framework/base/violations.h"
#include "trainers/config/run_config.h"
#include "xxhash.h"

namespace tessera {
namespace {

// Columns that remain of 80 after "error: ".
constexpr int kErrorColumns = 73;

// The sources of a config's values.
struct Sources {
  TextProtoLocations files;
  std::vector<std::string> overridden;  // paths
};

// The folder of `path`, with its "/"; empty if `path` has none.
absl::string_view FolderOf(absl::string_view path) {
  return path.substr(0, path.rfind('/') + 1);  // npos + 1 is 0
}

// "tiny_cpu" for "configs/tiny_cpu.pbtxt".
absl::string_view StemOf(absl::string_view path) {
  return absl::StripSuffix(path.substr(FolderOf(path).size()), ".pbtxt");
}

// A hint for a user who typed `path`: "did you mean configs/tiny_cpu.pbtxt?" or
// the existing configs.
std::string ConfigHint(absl::string_view path) {
  const std::string folder(FolderOf(path));
  std::map<std::string, std::string> paths;  // by stem
  const auto add = [&paths](absl::string_view in,
                            const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".pbtxt")) continue;
      paths.emplace(StemOf(name), absl::StrCat(in, name));
    }
  };
  add("configs/", ListRuntimeFiles("configs"));
  for (const std::string& name : ListRuntimeFiles("configs")) {
    const std::string inner = absl::StrCat("configs/", name);
    add(absl::StrCat(inner, "/"), ListRuntimeFiles(inner));
  }
  std::vector<std::string> own;
  for (const auto& [stem, where] : paths) {
    absl::string_view name = absl::StripSuffix(where, ".pbtxt");
    own.emplace_back(absl::StripPrefix(name, "configs/"));
  }
  std::sort(own.begin(), own.end());
  const auto beside = ListDirectory(UserPath(folder.empty() ? "." : folder));
  if (beside.ok()) add(folder, *beside);

  const std::string typed(StemOf(path));
  std::vector<std::string> stems, meant;
  for (const auto& [stem, where] : paths) {
    stems.push_back(stem);
    if (!typed.empty() && absl::StartsWith(stem, typed)) meant.push_back(where);
  }
  if (const std::string nearest = NearestName(typed, stems); !nearest.empty()) {
    meant = {paths[nearest]};
  }
  if (meant.empty()) {
    return absl::StrCat("there are configs/NAME.pbtxt with NAME one of ",
                        absl::StrJoin(own, ", "));
  }
  return absl::StrCat("did you mean ", absl::StrJoin(meant, ", "), "?");
}

absl::StatusOr<std::string> FindConfig(absl::string_view path) {
  std::string user_path = UserPath(path);
  if (FileExists(user_path) || absl::StartsWith(path, "/")) return user_path;
  absl::StatusOr<std::string> found = FindRuntimeFile(path);
  if (found.ok()) return found;
  std::string message = absl::StrCat("there is no config ", Shorten(path), "\n",
                                     Fold(ConfigHint(path), kErrorColumns, 2),
                                     "\nlooked for\n  ", Shorten(user_path));
  for (const std::string& place : RuntimePlaces(path)) {
    absl::StrAppend(&message, "\n  ", Shorten(place));
  }
  return absl::NotFoundError(message);
}

// Merges the file at chain.back() into `config`, after the file that it names
// as its base. `chain`: the files of which each has the next as its base.
absl::Status MergeConfig(const std::vector<std::string>& chain,
                         RunConfig* config, TextProtoLocations* locations);

absl::Status MergeBase(std::vector<std::string> chain, const std::string& base,
                       RunConfig* config, TextProtoLocations* locations) {
  ASSIGN_OR_RETURN(std::string path, PathNamedIn(chain.back(), base));
  if (absl::c_linear_search(chain, path)) {
    return absl::InvalidArgumentError("a config cannot be based on itself");
  }
  chain.push_back(std::move(path));
  return MergeConfig(chain, config, locations);
}

absl::Status MergeConfig(const std::vector<std::string>& chain,
                         RunConfig* config, TextProtoLocations* locations) {
  // Messages contain the file name as the user wrote it.
  const std::string name(Shorten(chain.back()));
  ASSIGN_OR_RETURN(const std::string file, FindConfig(chain.back()));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxTextProtoBytes));
  RunConfig own;
  ASSIGN_OR_RETURN(TextProtoLocations places, MergeTextProto(text, name, &own));
  if (own.has_base()) {
    const absl::Status merged = MergeBase(chain, own.base(), config, locations);
    if (!merged.ok()) {
      return WithPlace(
          FieldError("base", merged),
          [&](absl::string_view field) { return places.Describe(field); });
    }
  }
  RETURN_IF_ERROR(MergeTextProto(text, name, config).status());
  config->clear_base();
  locations->Add(std::move(places));
  return absl::OkStatus();
}

// Merges the files in order. An error contains the errors of all files.
absl::StatusOr<TextProtoLocations> ReadConfigs(
    absl::Span<const std::string> paths, RunConfig* config) {
  TextProtoLocations locations(*RunConfig::descriptor());
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<std::string> errors;
  for (const std::string& path : paths) {
    const absl::Status merged = MergeConfig({path}, config, &locations);
    if (merged.ok()) continue;
    if (errors.empty()) code = merged.code();
    errors.emplace_back(merged.message());
  }
  if (errors.empty()) return locations;
  return absl::Status(code, absl::StrJoin(errors, "\n"));
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

// Whether an override set `path` or a message around it.
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
      overridden ? "--set" : sources.files.Describe(path), ": ", path, ": ",
      // Keeps one line per violation, even if its value contains newlines.
      absl::StrReplaceAll(violation.message, {{"\n", "\\n"}}),
      !overridden && sources.files.IsDefault(path) ? " (the default)" : "");
}

}  // namespace

absl::StatusOr<RunConfig> LoadRunConfig(
    absl::Span<const std::string> paths,
    absl::Span<const std::string> overrides) {
  RunConfig config;
  ASSIGN_OR_RETURN(TextProtoLocations locations, ReadConfigs(paths, &config));
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

std::string ConfigSource(absl::Span<const std::string> paths,
                         absl::Span<const std::string> overrides,
                         absl::string_view field) {
  RunConfig config;
  absl::StatusOr<TextProtoLocations> locations = ReadConfigs(paths, &config);
  std::vector<std::string> overridden;
  const bool again =
      locations.ok() && ApplyOverrides(overrides, &config, &overridden).ok();
  // Otherwise a file has changed since it was loaded.
  if (!again) return absl::StrJoin(paths, " + ");
  return IsOverridden(field, overridden) ? "--set" : locations->Describe(field);
}

absl::Status WithConfigSource(const absl::Status& status,
                              absl::Span<const std::string> paths,
                              absl::Span<const std::string> overrides) {
  return WithPlace(status, [&](absl::string_view field) {
    return ConfigSource(paths, overrides, field);
  });
}

std::string ConfigHash(const RunConfig& config) {
  const std::string text = PrintWithDefaults(config);
  return absl::StrFormat("%016x", XXH3_64bits(text.data(), text.size()));
}

}  // namespace tessera
