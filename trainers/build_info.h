#ifndef TRAINERS_BUILD_INFO_H_
#define TRAINERS_BUILD_INFO_H_

#include <string>

#include "nlohmann/json.hpp"

namespace tessera {

// The commit that this program was built from, "7b6dbfa012", and a hash of what
// differed from it, if anything: "7b6dbfa012+1a2b3c4d". From a bundle, or from
// the source tree under `bazel run`; empty if the program was started by hand,
// or the tree is no git checkout.
std::string BuildCommit();

// What this program was built from, for `--build_info`, run logs and
// checkpoints: {"tessera", "commit" (null: unknown), "libtorch", "cuda" (null
// in a CPU build), "compiler"}.
nlohmann::ordered_json BuildInfo();

// "tessera 0.1.0 (7b6dbfa012), LibTorch 2.11.0, CUDA 13.0".
std::string BuildSummary();

}  // namespace tessera

#endif  // TRAINERS_BUILD_INFO_H_
