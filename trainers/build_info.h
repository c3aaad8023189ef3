#ifndef TRAINERS_BUILD_INFO_H_
#define TRAINERS_BUILD_INFO_H_

#include <string>

#include "nlohmann/json.hpp"

namespace tessera {

// The versions that this program was built from, for `--build_info`, run logs
// and checkpoints: {"tessera", "libtorch", "cuda" (null in a CPU build),
// "compiler"}.
nlohmann::ordered_json BuildInfo();

// "tessera 0.1.0, LibTorch 2.11.0, CUDA 13.0".
std::string BuildSummary();

}  // namespace tessera

#endif  // TRAINERS_BUILD_INFO_H_
