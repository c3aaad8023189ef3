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

// Calls fn with the element type and the head dim of the kernels that run p and
// with whether they cap scores, as std::integral_constants.
template <typename Fn>
cudaError_t WithTypedKernels(const ForwardParams& p, const Fn& fn) {
  return WithKernels(p, [&](auto dim, auto soft_cap) {
    switch (p.type) {
      case FloatType::kBFloat16:
        return fn(Constant<FloatType::kBFloat16>(), dim, soft_cap);
      case FloatType::kHalf:
        return fn(Constant<FloatType::kHalf>(), dim, soft_cap);
      case FloatType::kFloat:
        if constexpr (dim() <= kLargestTf32HeadDim) {
          return fn(Constant<FloatType::kFloat>(), dim, soft_cap);
        }
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream) {
  return WithTypedKernels(params, [&](auto type, auto dim, auto soft_cap) {
    return LaunchForward<type(), dim(), soft_cap()>(params, stream);
  });
}

cudaError_t Backward(const BackwardParams& params, cudaStream_t stream) {
  const ForwardParams& p = params.forward;
  return WithTypedKernels(p, [&](auto type, auto dim, auto soft_cap) {
    return LaunchBackward<type(), dim(), soft_cap()>(params, stream);
  });
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera
