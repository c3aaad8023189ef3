#include "trainers/build_info.h"

#include <torch/version.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/cuda/device.h"
#include "trainers/version.h"

namespace tessera {
namespace {

// What a shell command prints; empty if it fails.
std::string OutputOf(const char* command) {
  std::FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  std::string output;
  std::array<char, 256> part;
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) {
    output += part.data();
  }
  return pclose(pipe) == 0 ? output : "";
}

// Tells the processes that this one starts. By then someone may have edited the
// source tree, but they still run what was built before.
constexpr char kInherited[] = "TESSERA_COMMIT";

std::string FindCommit() {
  const absl::StatusOr<std::string> bundled = FindRuntimeFile("commit");
  if (bundled.ok()) return ReadFile(*bundled).value_or("");
  if (const char* commit = std::getenv(kInherited)) return commit;
  const absl::StatusOr<std::string> script = FindRuntimeFile("tools/commit.sh");
  if (std::getenv("BUILD_WORKSPACE_DIRECTORY") == nullptr || !script.ok()) {
    return "";
  }
  // The shell takes the paths from the environment, whatever is in them.
  setenv("TESSERA_COMMIT_SCRIPT", script->c_str(), /*overwrite=*/1);
  return OutputOf(
      "bash \"$TESSERA_COMMIT_SCRIPT\" \"$BUILD_WORKSPACE_DIRECTORY\" "
      "2>/dev/null");
}

}  // namespace

std::string BuildCommit() {
  static const std::string commit = [] {
    const std::string found(absl::StripAsciiWhitespace(FindCommit()));
    setenv(kInherited, found.c_str(), /*overwrite=*/1);
    return found;
  }();
  return commit;
}

nlohmann::ordered_json BuildInfo() {
  nlohmann::ordered_json info = {{"tessera", kTesseraVersion},
                                 {"commit", nullptr},
                                 {"libtorch", TORCH_VERSION},
                                 {"cuda", nullptr},
                                 {"compiler", "g++ " __VERSION__}};
  if (const std::string commit = BuildCommit(); !commit.empty()) {
    info["commit"] = commit;
  }
  if (const std::string cuda = CudaVersion(); !cuda.empty()) {
    info["cuda"] = cuda;
  }
  return info;
}

std::string BuildSummary() {
  const std::string commit = BuildCommit(), cuda = CudaVersion();
  return absl::StrCat("tessera ", kTesseraVersion,
                      commit.empty() ? "" : absl::StrCat(" (", commit, ")"),
                      ", LibTorch ", TORCH_VERSION, ", ",
                      cuda.empty() ? "no CUDA" : "CUDA ", cuda);
}

}  // namespace tessera
