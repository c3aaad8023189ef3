#include "framework/base/torch_status.h"

#include <ATen/ATen.h>

#include <new>
#include <string>

#include "absl/status/status.h"
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

}  // namespace
}  // namespace tessera
