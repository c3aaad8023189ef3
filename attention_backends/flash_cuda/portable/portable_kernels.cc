#include "attention_backends/flash_cuda/portable/portable_kernels.h"

#include <type_traits>

#include "attention_backends/flash_cuda/portable/launch.h"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"

namespace tessera {
namespace flash {
namespace portable {
namespace {

template <FloatType kType>
using Constant = std::integral_constant<FloatType, kType>;

// Calls fn with the element type and the head dim of the kernels that run p, as
// std::integral_constants.
template <typename Fn>
cudaError_t WithKernels(const ForwardParams& p, const Fn& fn) {
  return WithHeadDim(p.d, [&](auto dim) {
    switch (p.type) {
      case FloatType::kBFloat16:
        return fn(Constant<FloatType::kBFloat16>(), dim);
      case FloatType::kHalf:
        return fn(Constant<FloatType::kHalf>(), dim);
      case FloatType::kFloat:
        if constexpr (dim() <= kLargestTf32HeadDim) {
          return fn(Constant<FloatType::kFloat>(), dim);
        }
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream) {
  return WithKernels(params, [&](auto type, auto dim) {
    return LaunchForward<type(), dim()>(params, stream);
  });
}

cudaError_t Backward(const BackwardParams& params, cudaStream_t stream) {
  return WithKernels(params.forward, [&](auto type, auto dim) {
    return LaunchBackward<type(), dim()>(params, stream);
  });
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera
