#ifndef FRAMEWORK_BASE_RUNTIME_FILES_H_
#define FRAMEWORK_BASE_RUNTIME_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The path of a file that travels with the program, named as in the source
// tree: FindRuntimeFile("configs/tiny_cpu.pbtxt"). Looks, in this order, in
//   $RUNFILES_DIR/tessera, $TEST_SRCDIR/tessera   under `bazel run` and `test`
//   PROGRAM.runfiles/tessera                      a program started by hand
//   PROGRAM's directory/.. and PROGRAM's directory      an installed bundle:
//                                     DIR/bin/train, DIR/configs/tiny_cpu.pbtxt
// NotFound lists where it looked, a line for each place.
absl::StatusOr<std::string> FindRuntimeFile(absl::string_view path);

// Where FindRuntimeFile() looks, in its order.
std::vector<std::string> RuntimePlaces(absl::string_view path);

// The names in a folder that travels with the program, sorted, from the first
// of those places that has the folder; none if there is no such folder.
std::vector<std::string> ListRuntimeFiles(absl::string_view folder);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_RUNTIME_FILES_H_
