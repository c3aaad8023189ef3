#include "framework/base/runtime_files.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"

namespace tessera {
namespace {

// Bazel's name of this source tree, and of its folder among runfiles.
constexpr absl::string_view kWorkspace = "tessera";

std::vector<std::string> RuntimeRoots() {
  std::vector<std::string> roots;
  for (const char* variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    const char* directory = std::getenv(variable);
    if (directory != nullptr) {
      roots.push_back(absl::StrCat(directory, "/", kWorkspace));
    }
  }
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path directory = program.parent_path();
    roots.push_back(absl::StrCat(program.string(), ".runfiles/", kWorkspace));
    roots.push_back(directory.parent_path().string());
    roots.push_back(directory.string());
  }
  return roots;
}

}  // namespace

absl::StatusOr<std::string> FindRuntimeFile(absl::string_view path) {
  const std::vector<std::string> roots = RuntimeRoots();
  for (const std::string& root : roots) {
    std::string candidate = absl::StrCat(root, "/", path);
    if (PathExists(candidate).value_or(false)) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("no file ", path,
                                          " came with the program; looked in ",
                                          absl::StrJoin(roots, ", ")));
}

}  // namespace tessera
