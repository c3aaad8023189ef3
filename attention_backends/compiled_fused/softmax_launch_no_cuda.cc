#include "attention_backends/compiled_fused/softmax_launch.h"

namespace tessera {
namespace fused {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::UnimplementedError(
      "COMPILED_FUSED: this build has no CUDA; build with --config=cuda");
}

}  // namespace

bool BuiltWithCuda() { return false; }

absl::Status Launch(const SoftmaxForwardCall&, c10::Device) {
  return BuiltWithoutCuda();
}

absl::Status Launch(const SoftmaxBackwardCall&, c10::Device) {
  return BuiltWithoutCuda();
}

}  // namespace fused
}  // namespace tessera
