#include <ATen/ATen.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/base/temporary_memory.h"
#include "framework/base/torch_status.h"
#include "framework/dist/copy_engine_memory.h"
#include "torch/csrc/cuda/CUDAPluggableAllocator.h"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

absl::Status AsStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

struct Segment {
  void* begin = nullptr;
  size_t bytes = 0;
};

// Memory that NCCL can give to other ranks, in the order in which it was
// allocated. That order is the same on all ranks; the order of addresses, in
// which c10d would register it, is not.
class Segments {
 public:
  // For a caching allocator, which may outlive this.
  static std::shared_ptr<allocator::CUDAAllocator> AllocatorOf(
      const std::shared_ptr<Segments>& segments) {
    return torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
        [segments](size_t bytes, int, cudaStream_t) {
          return segments->Allocate(bytes);
        },
        [segments](void* begin, size_t, int, cudaStream_t) {
          segments->Free(begin);
        });
  }

  const std::vector<Segment>& all() const { return all_; }

 private:
  void* Allocate(size_t bytes) {
    void* begin = nullptr;
    // Null tells the caching allocator that memory is exhausted.
    if (ncclMemAlloc(&begin, bytes) != ncclSuccess) return nullptr;
    all_.push_back({begin, bytes});
    return begin;
  }
  void Free(void* begin) {
    std::erase_if(all_, [begin](const Segment& s) { return s.begin == begin; });
    static_cast<void>(ncclMemFree(begin));
  }

  std::vector<Segment> all_;
};

class NcclMemory final : public CopyEngineMemory {
 public:
  NcclMemory(c10::intrusive_ptr<c10d::Backend> backend, c10::Device gpu)
      : backend_(std::move(backend)), gpu_(gpu) {}
  ~NcclMemory() override {
    // After an error of the GPU, freeing the pool throws.
    if (!windows_.empty()) static_cast<void>(pool_.release());
  }

  absl::Status Allocate(absl::FunctionRef<absl::Status()> allocate) override {
    const c10::cuda::CUDAGuard guard(gpu_);
    const auto segments = std::make_shared<Segments>();
    RETURN_IF_ERROR(StatusFromTorch([&] {
      pool_ =
          std::make_unique<at::cuda::MemPool>(Segments::AllocatorOf(segments));
      const std::thread::id thread = std::this_thread::get_id();
      allocator::beginAllocateToPool(
          gpu_.index(), pool_->id(), [thread](cudaStream_t) {
            return std::this_thread::get_id() == thread &&
                   !TemporaryMemoryScope::Exists();
          });
    }));
    const absl::Status allocated = StatusFromTorchOr(allocate);
    RETURN_IF_ERROR(StatusFromTorch([&] {
      allocator::endAllocateToPool(gpu_.index(), pool_->id());
      allocator::releasePool(gpu_.index(), pool_->id());
    }));
    RETURN_IF_ERROR(allocated);
    RETURN_IF_ERROR(CheckSameOnAllRanks(segments->all()));
    for (const auto& [begin, bytes] : segments->all()) {
      RETURN_IF_ERROR(
          AsStatus(ncclCommWindowRegister(comm(), begin, bytes,
                                          &windows_.emplace_back(nullptr),
                                          NCCL_WIN_COLL_SYMMETRIC),
                   "NCCL cannot share this GPU's memory with other ranks"));
    }
    return absl::OkStatus();
  }

  absl::Status Release() override {
    const c10::cuda::CUDAGuard guard(gpu_);  // comm() is that of this device
    while (!windows_.empty()) {
      RETURN_IF_ERROR(
          AsStatus(ncclCommWindowDeregister(comm(), windows_.back()),
                   "NCCL cannot deregister shared memory"));
      windows_.pop_back();
    }
    return absl::OkStatus();
  }

  c10d::Backend& backend() const override { return *backend_; }

 private:
  // If sizes differ, NCCL maps a part of a window, or the wrong window.
  absl::Status CheckSameOnAllRanks(const std::vector<Segment>& segments) {
    uint64_t sizes = segments.size();
    for (const Segment& segment : segments) {
      sizes = sizes * 1'000'003 + segment.bytes;
    }
    return StatusFromTorchOr([&] {
      const at::Tensor own = at::full({1}, static_cast<int64_t>(sizes),
                                      at::dtype(at::kLong).device(gpu_));
      at::Tensor all = own.repeat({backend_->getSize()});
      at::Tensor from = own;
      backend_->_allgather_base(all, from, {})->wait();
      if ((all == own).all().item<bool>()) return absl::OkStatus();
      return absl::InternalError(
          "the memory that this GPU would share has other sizes on another "
          "rank");
    });
  }

  ncclComm_t comm() const {
    return reinterpret_cast<ncclComm_t>(
        dynamic_cast<c10d::ProcessGroupNCCL&>(*backend_).getCommPtr());
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::Device gpu_;
  std::unique_ptr<at::cuda::MemPool> pool_;
  std::vector<ncclWindow_t> windows_;
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
