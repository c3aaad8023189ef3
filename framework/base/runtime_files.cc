#include "framework/base/runtime_files.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/shorten.h"

namespace tessera {
namespace {

// Bazel's name of this workspace, and of its folder in the runfiles.
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

std::vector<std::string> RuntimePlaces(absl::string_view path) {
  std::vector<std::string> places = RuntimeRoots();
  for (std::string& place : places) absl::StrAppend(&place, "/", path);
  return places;
}

absl::StatusOr<std::string> PathNamedIn(absl::string_view path,
                                        absl::string_view name) {
  if (name.empty() || absl::c_any_of(name, absl::ascii_iscntrl)) {
    return absl::InvalidArgumentError("is no file name");
  }
  if (name[0] == '/') return std::string(name);
  return absl::StrCat(path.substr(0, path.rfind('/') + 1), name);  // npos + 1
}

absl::StatusOr<std::string> FindRuntimeFile(absl::string_view path) {
  std::string message = absl::StrCat("no file ", Shorten(path),
                                     " comes with the program; looked for");
  for (std::string& place : RuntimePlaces(path)) {
    if (PathExists(place).value_or(false)) return std::move(place);
    absl::StrAppend(&message, "\n  ", Shorten(place));
  }
  return absl::NotFoundError(message);
}

std::vector<std::string> ListRuntimeFiles(absl::string_view folder) {
  for (const std::string& place : RuntimePlaces(folder)) {
    absl::StatusOr<std::vector<std::string>> names = ListDirectory(place);
    if (names.ok()) return *std::move(names);
  }
  return {};
}

}  // namespace tessera
