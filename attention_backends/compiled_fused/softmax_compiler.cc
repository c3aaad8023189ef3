#include "attention_backends/compiled_fused/softmax_compiler.h"

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "attention_backends/compiled_fused/kernel_source.h"
#include "attention_backends/compiled_fused/nvrtc.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace fused {
namespace {

// Everything that the image depends on, including the driver's version: the
// driver decides whether it accepts an image.
std::string KeyOf(const Nvrtc& nvrtc, absl::string_view architecture,
                  const std::vector<std::string>& options) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  return absl::StrCat("NVRTC ", nvrtc.version(), ", driver ", driver, ", ",
                      architecture, " ", absl::StrJoin(options, " "), "\n",
                      SoftmaxKernelSource());
}

}  // namespace

absl::StatusOr<SoftmaxImage> CompileSoftmax(const SoftmaxSpec& spec,
                                            int capability,
                                            const ImageCache* cache) {
  ASSIGN_OR_RETURN(const Nvrtc* const nvrtc, Nvrtc::Get());
  ASSIGN_OR_RETURN(const std::string architecture,
                   nvrtc->ArchitectureOf(capability));
  std::vector<std::string> options = DefinesOf(spec);
  options.push_back("--std=c++17");
  const std::string key = KeyOf(*nvrtc, architecture, options);
  if (cache != nullptr) {
    absl::StatusOr<std::string> code = cache->Read(key);
    if (code.ok()) return SoftmaxImage{*std::move(code), /*from_cache=*/true};
    if (!absl::IsNotFound(code.status())) {
      LogWarning(absl::StrCat(code.status().message(), "; recompiling"));
    }
  }
  const absl::Time start = MonotonicNow();
  ASSIGN_OR_RETURN(std::string code,
                   nvrtc->Compile(std::string(SoftmaxKernelSource()),
                                  architecture, options));
  LogInfo(absl::StrFormat(
      "COMPILED_FUSED: compiled softmax kernels for %s, %s, in %.2f s",
      ToString(spec), architecture,
      absl::ToDoubleSeconds(MonotonicNow() - start)));
  if (cache != nullptr) {
    const absl::Status kept = cache->Write(key, code);
    if (!kept.ok()) {
      LogWarning(absl::StrCat(
          "cannot cache compiled kernels for the next run: ", kept.message()));
    }
  }
  return SoftmaxImage{std::move(code), /*from_cache=*/false};
}

}  // namespace fused
}  // namespace tessera
