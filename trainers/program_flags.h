#ifndef TRAINERS_PROGRAM_FLAGS_H_
#define TRAINERS_PROGRAM_FLAGS_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// How a program describes itself.
struct ProgramText {
  std::string usage;    // at the top of --help
  std::string version;  // for --version
};

// Sets the program's flags from its arguments, as absl::ParseCommandLine()
// does, and returns the arguments that are not flags. Errors for which that
// function exits with code 1 are InvalidArgument here, like any other mistake
// of a user: an unknown flag, a flag without its value, or a value of the wrong
// type.
//
// --help and --version print to stdout and end the program with 0:
//   --help           what the program does, then our flags
//   --help=TEXT      the flags with TEXT in their name, file or description
//   --helpfull       our flags, then Abseil's own
absl::StatusOr<std::vector<std::string>> ParseFlags(int argc, char** argv,
                                                    const ProgramText& text);

// ParseFlags() for a program that takes only flags: InvalidArgument names the
// first other argument.
absl::Status ParseFlagsOnly(int argc, char** argv, const ProgramText& text);

// The main() of such a program: prepares the process
// (framework/base/process.h), parses the flags, calls `run`, reports its error
// and returns the exit code.
int RunProgram(int argc, char** argv, const ProgramText& text,
               absl::FunctionRef<absl::Status()> run);

// The main() of a program of one process that also takes positional arguments,
// which `run` gets.
int RunProgramWithArguments(
    int argc, char** argv, const ProgramText& text,
    absl::FunctionRef<absl::Status(const std::vector<std::string>&)> run);

}  // namespace tessera

#endif  // TRAINERS_PROGRAM_FLAGS_H_
