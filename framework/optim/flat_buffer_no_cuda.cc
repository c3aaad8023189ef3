#include "absl/status/status.h"
#include "framework/optim/flat_buffer_cuda.h"

namespace tessera {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::UnimplementedError(
      "the optimizer was given CUDA tensors, but this program was built "
      "without CUDA; build with --config=cuda");
}

}  // namespace

absl::Status SumOfSquaresOnCuda(const at::Tensor&, const at::Tensor&) {
  return BuiltWithoutCuda();
}

absl::Status UpdateAdamWOnCuda(const AdamWBuffers&, const AdamWScalars&,
                               const AdamWOptions&, const at::Tensor&) {
  return BuiltWithoutCuda();
}

}  // namespace tessera
