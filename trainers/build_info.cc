#include "trainers/build_info.h"

#include <torch/version.h>

#include "absl/strings/str_cat.h"
#include "framework/cuda/device.h"
#include "trainers/version.h"

namespace tessera {
nlohmann::ordered_json BuildInfo() {
  nlohmann::ordered_json info = {{"tessera", kTesseraVersion},
                                 {"libtorch", TORCH_VERSION},
                                 {"cuda", nullptr},
                                 {"compiler", "g++ " __VERSION__}};
  if (const std::string cuda = CudaVersion(); !cuda.empty()) {
    info["cuda"] = cuda;
  }
  return info;
}

std::string BuildSummary() {
  const std::string cuda = CudaVersion();
  return absl::StrCat("tessera ", kTesseraVersion, ", LibTorch ", TORCH_VERSION,
                      ", ", cuda.empty() ? "no CUDA" : "CUDA ", cuda);
}

}  // namespace tessera
