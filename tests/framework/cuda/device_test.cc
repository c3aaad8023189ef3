#include "framework/cuda/device.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Device, RefusesGpusThatKernelsAreNotCompiledFor) {
  DeviceInfo gpu;
  gpu.device = c10::Device(c10::kCUDA, 1);
  gpu.name = "NVIDIA T4";
  gpu.compute_capability = 75;
  EXPECT_EQ(CheckRunsKernels(gpu, "--device=CPU"),
            absl::FailedPreconditionError(
                "CUDA device 1, NVIDIA T4, has compute capability 7.5; the "
                "kernels need 8.0 or newer; use another GPU "
                "(CUDA_VISIBLE_DEVICES), or the CPU: --device=CPU"));
  for (const int capability : {80, 86, 90, 120}) {
    gpu.compute_capability = capability;
    EXPECT_TRUE(CheckRunsKernels(gpu, "").ok()) << capability;
  }
}

}  // namespace
}  // namespace tessera
