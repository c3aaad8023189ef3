#ifndef FRAMEWORK_BASE_RUNTIME_FILES_H_
#define FRAMEWORK_BASE_RUNTIME_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The path of the file `name` that the file at `path` names, relative to the
// folder of `path`. InvalidArgument if it is empty or has control characters,
// such as the end of a line.
absl::StatusOr<std::string> PathNamedIn(absl::string_view path,
                                        absl::string_view name);

// Finds a file that is installed with the program, by its name in the source
// tree: FindRuntimeFile("configs/tiny_cpu.pbtxt"). Searches, in this order:
//   $RUNFILES_DIR/tessera, $TEST_SRCDIR/tessera   under `bazel run` and `test`
//   PROGRAM.runfiles/tessera                      a program started by hand
//   PROGRAM's directory/.. and PROGRAM's directory      an installed bundle:
//                                     DIR/bin/train, DIR/configs/tiny_cpu.pbtxt
// NotFound lists the places searched, one per line.
absl::StatusOr<std::string> FindRuntimeFile(absl::string_view path);

// The places that FindRuntimeFile() searches, in order.
std::vector<std::string> RuntimePlaces(absl::string_view path);

// The names in a folder that is installed with the program, sorted, from the
// first of the RuntimePlaces() that exists; empty if none does.
std::vector<std::string> ListRuntimeFiles(absl::string_view folder);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_RUNTIME_FILES_H_
