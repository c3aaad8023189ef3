#include "trainers/config/config_flags.h"

#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trainers/config/config_loader.h"

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
          "FIELD=VALUE, e.g. training.steps=1000; may be repeated, and the "
          "last one wins. FIELD is a path from the root of the config, whose "
          "fields --print_config of train shows with their values. More "
          "examples: optimizer.adamw.lr=3e-4 (a number), precision.mode=BF16 "
          "(a name), and in quotes for the shell "
          "'data.token_files.train=[corpus_a, corpus_b]' (a list, in place of "
          "the old one), 'optimizer.schedule={warmup_ratio: 0.1 cosine {}}' "
          "(a message, in place of the old one)")
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
