#include "trainers/build_info.h"

#include <torch/version.h>

#include "absl/strings/str_cat.h"
#include "trainers/version.h"
#ifdef TESSERA_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tessera {
namespace {

nlohmann::ordered_json CudaVersion() {
#ifdef TESSERA_CUDA
  return absl::StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
#else
  return nullptr;
#endif
}

}  // namespace

nlohmann::ordered_json BuildInfo() {
  return {{"tessera", kTesseraVersion},
          {"libtorch", TORCH_VERSION},
          {"cuda", CudaVersion()},
          {"compiler", "g++ " __VERSION__}};
}

std::string BuildSummary() {
  const nlohmann::ordered_json cuda = CudaVersion();
  return absl::StrCat(
      "tessera ", kTesseraVersion, ", LibTorch ", TORCH_VERSION, ", ",
      cuda.is_null() ? std::string("no CUDA")
                     : absl::StrCat("CUDA ", cuda.get<std::string>()));
}

}  // namespace tessera
