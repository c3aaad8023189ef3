#include "framework/base/torch_status.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <cstdint>
#include <latch>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(StatusFromTorch, KeepsThrownStatuses) {
  const absl::Status status =
      StatusFromTorch([] { ThrowIfError(absl::AbortedError("stop")); });
  EXPECT_EQ(status, absl::AbortedError("stop"));
}

TEST(StatusFromTorch, KeepsOneLineOfAnError) {
  const at::Tensor x = at::zeros({2, 3});
  const absl::Status status = StatusFromTorch([&] { at::matmul(x, x); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2x3"));
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

TEST(StatusFromTorch, RecognizesExhaustedHostMemory) {
  // More than the address space.
  const absl::Status tensor =
      StatusFromTorch([] { at::empty({int64_t{1} << 58}, at::kByte); });
  EXPECT_EQ(tensor.code(), absl::StatusCode::kResourceExhausted) << tensor;
  EXPECT_THAT(std::string(tensor.message()), HasSubstr("allocate"));
  const absl::Status container =
      StatusFromTorch([] { throw std::bad_alloc(); });
  EXPECT_EQ(container.code(), absl::StatusCode::kResourceExhausted);
}

// What LibTorch throws if a GPU has no memory left for something outside of its
// allocator: a graph, a module, page-locked memory; handles of libraries; NCCL.
TEST(StatusFromTorch, RecognizesExhaustedDeviceMemory) {
  constexpr int32_t kMemoryAllocation = 2, kIllegalAddress = 700;
  const auto thrown_by_cuda = [](int32_t code, const char* message) {
    return StatusFromTorch([&] {
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code,
                                  message);
    });
  };
  const absl::Status graph = thrown_by_cuda(
      kMemoryAllocation, "CUDA error: out of memory\nSearch for `cudaError");
  EXPECT_EQ(graph, absl::ResourceExhaustedError("CUDA error: out of memory"));
  const absl::Status fault = thrown_by_cuda(
      kIllegalAddress,
      "CUDA error: an illegal memory access was encountered\nSearch for");
  EXPECT_EQ(fault, absl::InternalError("LibTorch: CUDA error: an illegal "
                                       "memory access was encountered"));

  const auto code_of = [](const char* message) {
    return StatusFromTorch([&] { TORCH_CHECK(false, message); }).code();
  };
  for (const char* message :
       {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasGemmEx(",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
        "`cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN Frontend error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_"
        "FAILED",
        "CUDA driver error: out of memory",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\n"
        "Last error:\nCuda failure 2 'out of memory'"}) {
    EXPECT_EQ(code_of(message), absl::StatusCode::kResourceExhausted)
        << message;
  }
  for (const char* message :
       {"CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasGemm",
        "CUDA error: too many resources requested for launch"}) {
    EXPECT_EQ(code_of(message), absl::StatusCode::kInternal) << message;
  }
}

// On a GPU whose memory is full.
TEST(GpuStatusFromTorch, RecognizesExhaustedMemory) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const at::Tensor a = at::ones({64, 64}, at::kCUDA);
  EXPECT_EQ(at::mm(a, a)[0][0].item<float>(), 64);  // loads the kernels
  // More threads than have multiplied in this process: each has its own handle
  // and workspace of cuBLAS.
  constexpr int kThreads = 32;
  std::vector<absl::Status> multiplied(kThreads);
  const at::Tensor products = at::empty({kThreads, 64, 64}, a.options());
  {
    std::vector<at::Tensor> all;
    for (int64_t bytes = int64_t{1} << 36; bytes >= 1 << 20; bytes /= 2) {
      absl::Status status;
      while (status.ok()) {
        status = StatusFromTorch([&] {
          all.push_back(
              at::empty({bytes}, at::dtype(at::kByte).device(a.device())));
        });
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    }
    std::latch all_have(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        multiplied[i] = StatusFromTorch([&] {
          at::Tensor product = products[i];
          at::mm_out(product, a, a);
        });
        all_have.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int exhausted = 0;
  for (const absl::Status& status : multiplied) {
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ++exhausted;
  }
  EXPECT_GT(exhausted, 0);
  at::accelerator::emptyCache();
  EXPECT_EQ(at::mm(a, a)[0][0].item<float>(), 64);
  // More page-locked memory than the address space has.
  const absl::Status page_locked = StatusFromTorch([] {
    at::empty({int64_t{1} << 50}, at::dtype(at::kByte).pinned_memory(true));
  });
  EXPECT_EQ(page_locked.code(), absl::StatusCode::kResourceExhausted)
      << page_locked;
}

}  // namespace
}  // namespace tessera
