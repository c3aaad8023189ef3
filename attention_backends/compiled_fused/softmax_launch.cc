#include "attention_backends/compiled_fused/softmax_launch.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ATen/cuda/CUDAContext.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "attention_backends/compiled_fused/image_cache.h"
#include "attention_backends/compiled_fused/softmax_compiler.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_status.h"

namespace tessera {
namespace fused {
namespace {

struct SoftmaxKernels {
  cudaKernel_t forward = nullptr, backward = nullptr;
};

absl::StatusOr<SoftmaxKernels> LoadKernels(const std::string& code) {
  cudaLibrary_t library;
  RETURN_IF_ERROR(AsStatus(cudaLibraryLoadData(&library, code.data(), nullptr,
                                               nullptr, 0, nullptr, nullptr, 0),
                           "loading COMPILED_FUSED's kernels"));
  SoftmaxKernels kernels;
  RETURN_IF_ERROR(AsStatus(
      cudaLibraryGetKernel(&kernels.forward, library, "SoftmaxForward"),
      "finding COMPILED_FUSED's forward kernel"));
  RETURN_IF_ERROR(AsStatus(
      cudaLibraryGetKernel(&kernels.backward, library, "SoftmaxBackward"),
      "finding COMPILED_FUSED's backward kernel"));
  return kernels;
}

// $XDG_CACHE_HOME/tessera/kernels, or null if the user has no home directory.
std::unique_ptr<const ImageCache> UserImageCache() {
  const absl::StatusOr<std::string> folder = UserCacheDir();
  if (folder.ok()) {
    return std::make_unique<ImageCache>(absl::StrCat(*folder, "/kernels"));
  }
  LogWarning(absl::StrCat("cannot cache compiled kernels for the next run: ",
                          folder.status().message()));
  return nullptr;
}

// Every kernel that this process has loaded. A cudaLibrary_t belongs to no
// device: the runtime loads it onto each GPU when one of its kernels is first
// launched there, so GPUs with the same compute capability share an entry.
class KernelRegistry {
 public:
  static KernelRegistry& Get() {
    static auto* const registry = new KernelRegistry;
    return *registry;
  }

  absl::StatusOr<SoftmaxKernels> Find(const SoftmaxSpec& spec, int capability) {
    const absl::MutexLock lock(&mutex_);
    const auto key = std::make_pair(spec, capability);
    const auto found = kernels_.find(key);
    if (found != kernels_.end()) return found->second;
    RETURN_IF_ERROR(CheckNotCapturing(spec));
    ASSIGN_OR_RETURN(const SoftmaxImage image,
                     CompileSoftmax(spec, capability, cache_.get()));
    ASSIGN_OR_RETURN(const SoftmaxKernels kernels, LoadKernels(image.code));
    kernels_.emplace(key, kernels);
    return kernels;
  }

 private:
  KernelRegistry() : cache_(UserImageCache()) {}

  static absl::Status CheckNotCapturing(const SoftmaxSpec& spec) {
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() ==
        c10::cuda::CaptureStatus::None) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "COMPILED_FUSED cannot compile its kernels (", ToString(spec),
        ") during a CUDA graph's capture: run these shapes once before it"));
  }

  const std::unique_ptr<const ImageCache> cache_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::pair<SoftmaxSpec, int>, SoftmaxKernels> kernels_
      ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<SoftmaxKernels> KernelsOf(const SoftmaxSpec& spec,
                                         c10::Device device) {
  const cudaDeviceProp* const properties =
      at::cuda::getDeviceProperties(device.index());
  return KernelRegistry::Get().Find(spec,
                                    10 * properties->major + properties->minor);
}

unsigned CeilDiv(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace

absl::Status Launch(const SoftmaxForwardCall& call, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  ASSIGN_OR_RETURN(const SoftmaxKernels kernels, KernelsOf(call.spec, device));
  const SoftmaxGeometry geometry = GeometryOf(call.spec);
  void* scores = call.scores;
  float* lse = call.lse;
  auto rows = static_cast<unsigned>(call.rows);
  void* arguments[] = {&scores, &lse, &rows};
  return AsStatus(
      cudaLaunchKernel(kernels.forward,
                       dim3(CeilDiv(call.rows, geometry.rows_per_block())),
                       dim3(geometry.block_threads), arguments, 0, stream),
      "COMPILED_FUSED's forward kernel");
}

absl::Status Launch(const SoftmaxBackwardCall& call, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  ASSIGN_OR_RETURN(const SoftmaxKernels kernels, KernelsOf(call.spec, device));
  constexpr int kWarps = kBackwardThreads / 32;
  const int64_t warps = call.rows * GeometryOf(call.spec).chunks;
  SoftmaxBackwardCall c = call;
  auto rows = static_cast<unsigned>(call.rows);
  void* arguments[] = {&c.p,     &c.d_p,      &c.d_o, &c.o,
                       &c.heads, &c.head_dim, &rows};
  return AsStatus(
      cudaLaunchKernel(kernels.backward, dim3(CeilDiv(warps, kWarps)),
                       dim3(kBackwardThreads), arguments, 0, stream),
      "COMPILED_FUSED's backward kernel");
}

}  // namespace fused
}  // namespace tessera
