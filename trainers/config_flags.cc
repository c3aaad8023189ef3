#include "trainers/config_flags.h"

#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trainers/config_loader.h"

namespace {

// Abseil keeps the last value of a flag; --set wants all of them.
std::vector<std::string>& Overrides() {
  static auto* overrides = new std::vector<std::string>;
  return *overrides;
}

void AddOverride();

}  // namespace

ABSL_FLAG(std::string, config, "configs/tiny_cpu.pbtxt",
          "the run's config, a text proto of tessera.RunConfig");
ABSL_FLAG(std::string, set, "",
          "FIELD=VALUE, e.g. optimizer.adamw.lr=3e-4; may be repeated")
    .OnUpdate([] { AddOverride(); });

namespace {

void AddOverride() {
  const std::string value = absl::GetFlag(FLAGS_set);
  if (!value.empty()) Overrides().push_back(value);
}

}  // namespace

namespace tessera {

absl::StatusOr<RunConfig> RunConfigFromFlags() {
  return LoadRunConfig(absl::GetFlag(FLAGS_config), Overrides());
}

std::string ConfigSourceFromFlags(absl::string_view field) {
  return ConfigSource(absl::GetFlag(FLAGS_config), Overrides(), field);
}

std::string ConfigNameFromFlags() {
  const std::string path = absl::GetFlag(FLAGS_config);
  absl::string_view name = path;
  name.remove_prefix(name.rfind('/') + 1);
  return std::string(absl::StripSuffix(name, ".pbtxt"));
}

}  // namespace tessera
