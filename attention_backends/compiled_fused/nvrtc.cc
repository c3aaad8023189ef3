#include "attention_backends/compiled_fused/nvrtc.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace fused {
namespace {

// Finds functions of an open library and remembers the first missing one.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

// The text that `get` returns for a program: its log or its code.
template <typename Size, typename Get>
std::string TextOf(nvrtcProgram program, Size size, Get get) {
  size_t bytes = 0;
  if (size(program, &bytes) != NVRTC_SUCCESS) return "";
  std::string text(bytes, '\0');
  if (get(program, text.data()) != NVRTC_SUCCESS) return "";
  return text;
}

}  // namespace

absl::StatusOr<const Nvrtc*> Nvrtc::Get() {
  static const auto* const loaded =
      new absl::StatusOr<const Nvrtc*>(Nvrtc::Load());
  return *loaded;
}

absl::StatusOr<const Nvrtc*> Nvrtc::Load() {
  const std::string name = absl::StrCat("libnvrtc.so.", CUDART_VERSION / 1000);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "COMPILED_FUSED compiles its kernels with NVRTC, which cannot be "
        "loaded (",
        dlerror(), "): install nvidia-cuda-nvrtc or use NAIVE"));
  }
  auto* const nvrtc = new Nvrtc;
  const std::string missing = nvrtc->Bind(library);
  if (missing.empty()) return nvrtc;
  return absl::NotFoundError(
      absl::StrCat(name, " does not work (", missing,
                   " is missing or fails): install nvidia-cuda-nvrtc for CUDA ",
                   CUDART_VERSION / 1000, " or use NAIVE"));
}

std::string Nvrtc::Bind(void* library) {
  Symbols symbols(library);
  decltype(&nvrtcVersion) get_version = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) get_count = nullptr;
  decltype(&nvrtcGetSupportedArchs) get_capabilities = nullptr;
  symbols.Find("nvrtcVersion", &get_version);
  symbols.Find("nvrtcGetNumSupportedArchs", &get_count);
  symbols.Find("nvrtcGetSupportedArchs", &get_capabilities);
  symbols.Find("nvrtcCreateProgram", &create_program_);
  symbols.Find("nvrtcDestroyProgram", &destroy_program_);
  symbols.Find("nvrtcCompileProgram", &compile_program_);
  symbols.Find("nvrtcGetProgramLogSize", &get_log_size_);
  symbols.Find("nvrtcGetProgramLog", &get_log_);
  symbols.Find("nvrtcGetCUBINSize", &get_cubin_size_);
  symbols.Find("nvrtcGetCUBIN", &get_cubin_);
  symbols.Find("nvrtcGetPTXSize", &get_ptx_size_);
  symbols.Find("nvrtcGetPTX", &get_ptx_);
  if (!symbols.missing().empty()) return symbols.missing();

  int major = 0, minor = 0, count = 0;
  if (get_version(&major, &minor) != NVRTC_SUCCESS) return "nvrtcVersion";
  if (get_count(&count) != NVRTC_SUCCESS || count <= 0) {
    return "nvrtcGetNumSupportedArchs";
  }
  capabilities_.resize(count);
  if (get_capabilities(capabilities_.data()) != NVRTC_SUCCESS) {
    return "nvrtcGetSupportedArchs";
  }
  std::sort(capabilities_.begin(), capabilities_.end());
  version_ = absl::StrCat(major, ".", minor);
  return "";
}

absl::StatusOr<std::string> Nvrtc::ArchitectureOf(int capability) const {
  const auto above =
      std::upper_bound(capabilities_.begin(), capabilities_.end(), capability);
  if (above == capabilities_.begin()) {
    return absl::UnimplementedError(
        absl::StrCat("NVRTC ", version_, " compiles for compute capability ",
                     capabilities_.front() / 10, ".",
                     capabilities_.front() % 10, " or newer; this GPU has ",
                     capability / 10, ".", capability % 10, ": use NAIVE"));
  }
  const int newest = *(above - 1);
  return absl::StrCat(newest == capability ? "sm_" : "compute_", newest);
}

absl::StatusOr<std::string> Nvrtc::Compile(
    const std::string& source, absl::string_view architecture,
    const std::vector<std::string>& options) const {
  const std::string target = absl::StrCat("--gpu-architecture=", architecture);
  std::vector<const char*> arguments = {target.c_str()};
  for (const std::string& option : options) arguments.push_back(option.c_str());
  nvrtcProgram program;
  if (create_program_(&program, source.c_str(), "softmax_kernels.cuh", 0,
                      nullptr, nullptr) != NVRTC_SUCCESS) {
    return absl::InternalError("NVRTC cannot create a program");
  }
  const absl::Cleanup destroy = [&] { destroy_program_(&program); };
  const nvrtcResult result = compile_program_(
      program, static_cast<int>(arguments.size()), arguments.data());
  if (result != NVRTC_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("NVRTC ", version_, " failed to compile the kernels for ",
                     architecture, " (code ", static_cast<int>(result), "):\n",
                     TextOf(program, get_log_size_, get_log_)));
  }
  std::string image = absl::StartsWith(architecture, "sm_")
                          ? TextOf(program, get_cubin_size_, get_cubin_)
                          : TextOf(program, get_ptx_size_, get_ptx_);
  if (image.empty()) return absl::InternalError("NVRTC returned no code");
  return image;
}

}  // namespace fused
}  // namespace tessera
