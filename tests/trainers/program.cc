#include "tests/trainers/program.h"

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gtest/gtest.h"

namespace tessera {

Outcome Shell(const std::string& command) {
  Outcome outcome;
  // Prepared text goes to the test's own cache.
  std::FILE* pipe = popen(absl::StrCat("exec 2>&1; export XDG_CACHE_HOME=",
                                       testing::TempDir(), "; ", command)
                              .c_str(),
                          "r");
  char buffer[4096];
  while (size_t n = fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

std::vector<std::string> ToySets() {
  return {"model.vocab_size=300",
          "model.num_layers=2",
          "model.d_model=32",
          "model.num_heads=2",
          "model.d_ff=64",
          "model.context_length=16",
          "data.synthetic.successors=3",
          "training.batch_size=4",
          "training.steps=20",
          "training.sample_tokens_at_end=0",
          "training.eval_every_steps=10",
          "training.eval_batches=2",
          "observe.log_every_steps=1",
          "optimizer.schedule.warmup_steps=2"};
}

std::string ToyFlags() {
  return absl::StrCat(" --config=", kToyConfigFile, " --set ",
                      absl::StrJoin(ToySets(), " --set "), " ");
}

std::string ToyTrain(const std::vector<std::string>& arguments) {
  return absl::StrCat(FindRuntimeFile("trainers/train").value(), ToyFlags(),
                      absl::StrJoin(arguments, " "));
}

std::string Folder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  RemoveTree(folder).IgnoreError();
  return folder;
}

TokenFileFlags NanoGptTokens(const std::string& name, int tokens) {
  const std::string path = Folder(name);
  return {absl::StrCat("head -c ", 2 * tokens, " /dev/zero > ", path, "; "),
          absl::StrCat("--set 'data.token_files={train: \"", path,
                       "\" format: NANOGPT}'")};
}

std::vector<nlohmann::json> Records(const std::string& run,
                                    const std::string& type) {
  std::ifstream file(run + "/run.jsonl");
  std::vector<nlohmann::json> records;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record["type"] != type) continue;
    for (const char* wall_clock :
         {"time", "step_ms", "tokens_per_s", "tflops", "phases_ms"}) {
      record.erase(wall_clock);
    }
    records.push_back(std::move(record));
  }
  return records;
}

nlohmann::json Json(const std::string& path) {
  return nlohmann::json::parse(ReadFile(path).value());
}

}  // namespace tessera
