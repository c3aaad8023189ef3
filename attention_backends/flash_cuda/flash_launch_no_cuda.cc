#include "attention_backends/flash_cuda/flash_launch.h"

namespace tessera {
namespace flash {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::UnimplementedError(
      "FLASH_CUDA: this build has no CUDA; build with --config=cuda");
}

}  // namespace

bool BuiltWithCuda() { return false; }

absl::Status LaunchForward(const ForwardParams&, c10::Device) {
  return BuiltWithoutCuda();
}

absl::Status LaunchBackward(const BackwardParams&, c10::Device) {
  return BuiltWithoutCuda();
}

}  // namespace flash
}  // namespace tessera
