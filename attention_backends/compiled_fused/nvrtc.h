#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_NVRTC_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_NVRTC_H_

#include <nvrtc.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace fused {

// NVIDIA's compiler at run time, out of the shared library that LibTorch's
// CUDA build brings. Loaded when it is first wanted: it is 100 MB, and a
// program that never compiles does without it. Needs neither a GPU nor a
// driver. For sources that only CUDA builds compile.
class Nvrtc {
 public:
  // The process's one; NotFound, with the loader's words, without the library.
  static absl::StatusOr<const Nvrtc*> Get();

  // "13.0"
  const std::string& version() const { return version_; }

  // The architecture to compile for so that a GPU of this compute capability
  // (90 for 9.0) runs the result: "sm_90"; for one that is newer than this
  // compiler the newest that it knows as PTX, "compute_120", which the driver
  // translates. Unimplemented for one that is too old.
  absl::StatusOr<std::string> ArchitectureOf(int capability) const;

  // Machine code, or PTX for "compute_..". InvalidArgument with the compiler's
  // log where it refuses.
  absl::StatusOr<std::string> Compile(
      const std::string& source, absl::string_view architecture,
      const std::vector<std::string>& options) const;

 private:
  Nvrtc() = default;
  static absl::StatusOr<const Nvrtc*> Load();
  // Returns the function of the library that is missing or fails, if any.
  std::string Bind(void* library);

  std::string version_;
  std::vector<int> capabilities_;  // rising
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
