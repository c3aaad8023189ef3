#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <thread>
#include <utility>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/dist/copy_engine_memory.h"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class NcclMemory final : public CopyEngineMemory {
 public:
  NcclMemory(c10::intrusive_ptr<c10d::Backend> backend, c10::Device gpu)
      : backend_(std::move(backend)), gpu_(gpu) {}
  ~NcclMemory() override {
    // After an error of the GPU, freeing the pool throws.
    if (registered_) static_cast<void>(pool_.release());
  }

  absl::Status Allocate(absl::FunctionRef<absl::Status()> allocate) override {
    const c10::cuda::CUDAGuard guard(gpu_);
    RETURN_IF_ERROR(StatusFromTorch([&] {
      pool_ = std::make_unique<at::cuda::MemPool>(
          std::dynamic_pointer_cast<allocator::CUDAAllocator>(
              backend_->getMemAllocator()));
      const std::thread::id thread = std::this_thread::get_id();
      allocator::beginAllocateToPool(
          gpu_.index(), pool_->id(), [thread](cudaStream_t) {
            return std::this_thread::get_id() == thread;
          });
    }));
    const absl::Status allocated = StatusFromTorchOr(allocate);
    RETURN_IF_ERROR(StatusFromTorch([&] {
      allocator::endAllocateToPool(gpu_.index(), pool_->id());
      allocator::releasePool(gpu_.index(), pool_->id());
    }));
    RETURN_IF_ERROR(allocated);
    RETURN_IF_ERROR(StatusFromTorch(
        [&] { nccl().registerMemPool(pool_.get(), /*symm=*/true); }));
    registered_ = true;
    return absl::OkStatus();
  }

  absl::Status Release() override {
    if (!std::exchange(registered_, false)) return absl::OkStatus();
    return StatusFromTorch([&] { nccl().deregisterMemPool(pool_.get()); });
  }

  c10d::Backend& backend() const override { return *backend_; }

 private:
  c10d::ProcessGroupNCCL& nccl() const {
    return dynamic_cast<c10d::ProcessGroupNCCL&>(*backend_);
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::Device gpu_;
  std::unique_ptr<at::cuda::MemPool> pool_;
  bool registered_ = false;
};

}  // namespace

std::shared_ptr<CopyEngineMemory> MakeCopyEngineMemory(
    c10::intrusive_ptr<c10d::Backend> backend, c10::Device gpu) {
  return std::make_shared<NcclMemory>(std::move(backend), gpu);
}

bool AllowsCopyEngines(c10::Device gpu) {
  return c10::cuda::getCurrentCUDAStream(gpu.index()) !=
         c10::cuda::getDefaultCUDAStream(gpu.index());
}

}  // namespace tessera
