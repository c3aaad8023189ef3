#include "trainers/config/config_flags.h"

#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trainers/config/config_loader.h"

namespace {

// Abseil keeps only the last value of a flag; --config and --set need all.
std::vector<std::string>& Configs() {
  static auto* configs = new std::vector<std::string>;
  return *configs;
}
std::vector<std::string>& Overrides() {
  static auto* overrides = new std::vector<std::string>;
  return *overrides;
}

}  // namespace

ABSL_FLAG(std::string, config, "configs/tiny_cpu.pbtxt",
          "the run's config, a text proto of tessera.RunConfig. May be "
          "repeated: the files are merged in order, and only the result has to "
          "be valid, as in --config=configs/small.pbtxt "
          "--config=configs/precision/bf16.pbtxt. The last file that sets a "
          "field wins, and a list replaces the whole earlier list; --set wins "
          "over all files")
    .OnUpdate([] { Configs().push_back(absl::GetFlag(FLAGS_config)); });
ABSL_FLAG(std::string, set, "",
          "FIELD=VALUE, e.g. training.steps=1000; may be repeated, and the "
          "last one wins. FIELD is a path from the root of the config, whose "
          "fields --print_config of train shows with their values. More "
          "examples: optimizer.adamw.lr=3e-4 (a number), precision.mode=BF16 "
          "(a name), and in quotes for the shell "
          "'data.token_files.train=[corpus_a, corpus_b]' (a list, replaces "
          "the old one), 'optimizer.schedule={warmup_ratio: 0.1 cosine {}}' "
          "(a message, replaces the old one)")
    .OnUpdate([] {
      const std::string value = absl::GetFlag(FLAGS_set);
      if (!value.empty()) Overrides().push_back(value);
    });

namespace {

// The files that were given, else the default, which Abseil reports first. An
// empty name means no file.
std::vector<std::string> ConfigPaths() {
  std::vector<std::string> paths = Configs();
  if (paths.size() > 1) paths.erase(paths.begin());
  std::erase(paths, "");
  return paths;
}

}  // namespace

namespace tessera {

absl::StatusOr<RunConfig> RunConfigFromFlags() {
  return LoadRunConfig(ConfigPaths(), Overrides());
}

absl::Status WithConfigSourceFromFlags(const absl::Status& status) {
  return WithConfigSource(status, ConfigPaths(), Overrides());
}

std::string ConfigNameFromFlags() {
  return absl::StrJoin(
      ConfigPaths(), "_", [](std::string* out, absl::string_view path) {
        path.remove_prefix(path.rfind('/') + 1);
        absl::StrAppend(out, absl::StripSuffix(path, ".pbtxt"));
      });
}

}  // namespace tessera
