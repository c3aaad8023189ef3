#ifndef TRAINERS_RESUME_COMMAND_H_
#define TRAINERS_RESUME_COMMAND_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// A script or program that starts another sets this variable to what a user
// types before the arguments of the program: "./run train".
inline constexpr char kCommandVariable[] = "TESSERA_COMMAND";

// What a user types before the arguments of the program that was started as
// `program`: kCommandVariable; under `bazel run`, that of `target`
// ("//trainers:train"); else `program`. Words are quoted for the shell.
std::string CommandPrefix(const std::string& program, absl::string_view target);

// The command that resumes a run of `train` in `out`, from `prefix` and the
// arguments it was started with: they stay, except --resume and --out.
std::string ResumeCommand(absl::string_view prefix,
                          const std::vector<std::string>& arguments,
                          const std::string& out);

// What this process was started with, the program first; empty if the system
// does not say.
std::vector<std::string> ProcessArguments();

}  // namespace tessera

#endif  // TRAINERS_RESUME_COMMAND_H_
