#ifndef TESTS_TRAINERS_PROGRAM_H_
#define TESTS_TRAINERS_PROGRAM_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace tessera {

// Helpers to run programs through a shell, as a user does.

struct Outcome {
  int exit_code = 0;
  std::string output;  // stdout and stderr
};
Outcome Shell(const std::string& command);

// The config of a run that takes a moment on a CPU: 20 steps of a two-layer
// model on synthetic tokens; every step is logged. ToySets() are overrides of
// kToyConfigFile.
inline constexpr char kToyConfigFile[] = "configs/tiny_cpu.pbtxt";
std::vector<std::string> ToySets();
// That config as flags.
std::string ToyFlags();
// `train` with those flags and `arguments`, which may contain shell syntax.
std::string ToyTrain(const std::vector<std::string>& arguments);

// Flags for `tokens` tokens in nanoGPT's format, in a file of that name; the
// command `before` creates it.
struct TokenFileFlags {
  std::string before, flags;
};
TokenFileFlags NanoGptTokens(const std::string& name, int tokens);

// The path of a folder that does not exist, in the test's temporary folder.
std::string Folder(const std::string& name);

// The records of one type in a run's log, without fields that depend on time.
std::vector<nlohmann::json> Records(const std::string& run,
                                    const std::string& type);

nlohmann::json Json(const std::string& path);

}  // namespace tessera

#endif  // TESTS_TRAINERS_PROGRAM_H_
