#include "attention_backends/backend_table.h"

#include "attention_backends/compiled_fused/compiled_fused_backend.h"
#include "attention_backends/flash_cuda/flash_cuda_backend.h"
#include "attention_backends/flash_tiled/flash_tiled_backend.h"
#include "attention_backends/naive/naive_backend.h"
#include "attention_backends/torch_native/torch_cudnn_backend.h"
#include "attention_backends/torch_native/torch_efficient_backend.h"
#include "attention_backends/torch_native/torch_flash_backend.h"

namespace tessera {
namespace {

constinit const FlashCudaBackend kFlashCuda;
constinit const TorchCudnnBackend kTorchCudnn;
constinit const TorchFlashBackend kTorchFlash;
constinit const TorchEfficientBackend kTorchEfficient;
constinit const CompiledFusedBackend kCompiledFused;
constinit const NaiveBackend kNaive;
constinit const FlashTiledBackend kFlashTiled;

constexpr const AttentionBackend* kBackends[] = {
    &kFlashCuda,     &kTorchCudnn, &kTorchFlash, &kTorchEfficient,
    &kCompiledFused, &kNaive,      &kFlashTiled};

}  // namespace

absl::Span<const AttentionBackend* const> AttentionBackends() {
  return kBackends;
}

const AttentionBackend* FindBackend(absl::string_view name) {
  for (const AttentionBackend* backend : kBackends) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace tessera
