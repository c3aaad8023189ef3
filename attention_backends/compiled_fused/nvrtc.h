#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_NVRTC_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_NVRTC_H_

#include <nvrtc.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace fused {

// NVIDIA's run-time compiler, from the shared library that comes with
// LibTorch's CUDA build. Loaded on first use, since it is 100 MB and most
// programs never need it. Needs neither a GPU nor a driver. For sources that
// only CUDA builds compile.
class Nvrtc {
 public:
  // The process-wide instance. NotFound, with the loader's message, if there is
  // no library.
  static absl::StatusOr<const Nvrtc*> Get();

  // "13.0"
  const std::string& version() const { return version_; }

  // The architecture to compile for, given a GPU's compute capability (90 for
  // 9.0): "sm_90". For a GPU newer than the compiler it is the newest PTX that
  // the compiler knows, "compute_120", which the driver translates.
  // Unimplemented if the GPU is too old.
  absl::StatusOr<std::string> ArchitectureOf(int capability) const;

  // Machine code, or PTX for "compute_..". Internal with the compiler's log if
  // compilation fails.
  absl::StatusOr<std::string> Compile(
      const std::string& source, absl::string_view architecture,
      const std::vector<std::string>& options) const;

 private:
  Nvrtc() = default;
  static absl::StatusOr<const Nvrtc*> Load();
  // Returns the first function that is missing or fails; empty if all work.
  std::string Bind(void* library);

  std::string version_;
  std::vector<int> capabilities_;  // ascending
  decltype(&nvrtcCreateProgram) create_program_ = nullptr;
  decltype(&nvrtcDestroyProgram) destroy_program_ = nullptr;
  decltype(&nvrtcCompileProgram) compile_program_ = nullptr;
  decltype(&nvrtcGetProgramLogSize) get_log_size_ = nullptr;
  decltype(&nvrtcGetProgramLog) get_log_ = nullptr;
  decltype(&nvrtcGetCUBINSize) get_cubin_size_ = nullptr;
  decltype(&nvrtcGetCUBIN) get_cubin_ = nullptr;
  decltype(&nvrtcGetPTXSize) get_ptx_size_ = nullptr;
  decltype(&nvrtcGetPTX) get_ptx_ = nullptr;
};

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_NVRTC_H_
