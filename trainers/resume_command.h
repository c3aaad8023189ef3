#ifndef TRAINERS_RESUME_COMMAND_H_
#define TRAINERS_RESUME_COMMAND_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// A script or program that starts another one sets this variable to the command
// that a user types before the program's arguments: "./run train".
inline constexpr char kCommandVariable[] = "TESSERA_COMMAND";

// The command that a user types before the arguments of the program that was
// started as `program`: kCommandVariable, or under `bazel run` that of `target`
// ("//trainers:train"), else `program`. Words are quoted for the shell.
std::string CommandPrefix(const std::string& program, absl::string_view target);

// The command that resumes a run of `train` in `out`: `prefix` and the original
// arguments, except --resume and --out.
std::string ResumeCommand(absl::string_view prefix,
                          const std::vector<std::string>& arguments,
                          const std::string& out);

// The arguments of this process, the program first; empty if the system does
// not provide them.
std::vector<std::string> ProcessArguments();

}  // namespace tessera

#endif  // TRAINERS_RESUME_COMMAND_H_
