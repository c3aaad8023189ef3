#include "framework/cuda/page_locked.h"

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device_cuda.h"

namespace tessera {
namespace {

constexpr int64_t kPageBytes = 4096, kTouchedBytes = int64_t{64} << 20;

// Makes the system give pages to `memory`, so that locking them is quick.
absl::Status TouchPages(char* memory, int64_t bytes,
                        const std::atomic<bool>& stop) {
  madvise(memory, bytes, MADV_HUGEPAGE);  // only makes it faster
  for (int64_t begin = 0; begin < bytes; begin += kTouchedBytes) {
    if (stop) return absl::CancelledError("stopped");
    const int64_t end = std::min(bytes, begin + kTouchedBytes);
    for (int64_t i = begin; i < end; i += kPageBytes) {
      static_cast<volatile char*>(memory)[i] = 0;
    }
  }
  return absl::OkStatus();
}

// A tensor of mapped memory; unlocks the pages before it unmaps them.
at::Tensor Owning(char* memory, int64_t bytes, bool locked, int64_t numel,
                  at::ScalarType dtype) {
  return at::for_blob(memory, {numel})
      .deleter([bytes, locked](void* mapped) {
        if constexpr (kCudaBuild) {
          if (locked) cuda::UnlockPages(mapped);
        }
        munmap(mapped, bytes);
      })
      .options(at::dtype(dtype))
      .make_tensor();
}

}  // namespace

at::Tensor PageLocked(at::IntArrayRef shape, at::ScalarType dtype) {
  const int64_t bytes = c10::multiply_integers(shape) *
                        static_cast<int64_t>(c10::elementSize(dtype));
  at::DataPtr block = at::getHostAllocator(at::kCUDA)->allocate(bytes);
  const c10::DeleterFnPtr free_block = block.get_deleter();
  return at::for_blob(block.get(), shape)
      .deleter([free_block, context = block.release_context()](void*) {
        StatusFromTorch([&] { free_block(context); }).IgnoreError();
      })
      .options(at::dtype(dtype))
      .make_tensor();
}

at::Tensor HostMemoryFor(c10::Device device, at::IntArrayRef shape,
                         at::ScalarType dtype) {
  return device.is_cuda() ? PageLocked(shape, dtype) : at::empty(shape, dtype);
}

absl::StatusOr<at::Tensor> LargePageLocked(int64_t numel, at::ScalarType dtype,
                                           c10::Device device,
                                           const std::atomic<bool>& stop) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (bytes == 0) return at::empty({0}, at::dtype(dtype));
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        SystemError(errno, absl::StrCat("cannot map ", bytes, " bytes"))
            .message());
  }
  char* const memory = static_cast<char*>(mapped);
  absl::Status status = TouchPages(memory, bytes, stop);
  bool locked = false;
  if constexpr (kCudaBuild) {
    if (status.ok() && device.is_cuda()) {
      status = cuda::LockPages(device, memory, bytes);
      locked = status.ok();
    }
  }
  at::Tensor owning = Owning(memory, bytes, locked, numel, dtype);
  RETURN_IF_ERROR(status);
  return owning;
}

}  // namespace tessera
