#ifndef TRAINERS_PROGRAM_FLAGS_H_
#define TRAINERS_PROGRAM_FLAGS_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// What a program says of itself.
struct ProgramText {
  std::string usage;    // on top of --help
  std::string version;  // for --version
};

// Sets the program's flags from its arguments, all as absl::ParseCommandLine()
// would, and returns the arguments that are no flags. What that function ends
// the program for with exit code 1 is InvalidArgument here, as every other
// mistake of a user: a flag that does not exist, one without its value, a value
// of another type.
//
// --help and --version print to stdout and end the program with 0:
//   --help           what the program does, then our flags
//   --help=TEXT      the flags with TEXT in their name, file or description
//   --helpfull       our flags, then Abseil's own
absl::StatusOr<std::vector<std::string>> ParseFlags(int argc, char** argv,
                                                    const ProgramText& text);

// The same for a program that takes nothing else: InvalidArgument names the
// first argument that is no flag.
absl::Status ParseFlagsOnly(int argc, char** argv, const ProgramText& text);

// main() of such a program: prepares the process (framework/base/process.h),
// parses the flags, calls `run`, reports its error, and returns the exit code.
int RunProgram(int argc, char** argv, const ProgramText& text,
               absl::FunctionRef<absl::Status()> run);

}  // namespace tessera

#endif  // TRAINERS_PROGRAM_FLAGS_H_
