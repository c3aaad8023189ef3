#ifndef ATTENTION_BACKENDS_FLASH_CUDA_WITH_HEAD_DIM_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_WITH_HEAD_DIM_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tessera {
namespace flash {

// The head dims for which a family of kernels is compiled, in ascending order.
// kernel_family.bzl writes each family's list to its head_dims.h.
template <int... kDims>
using HeadDimList = std::integer_sequence<int, kDims...>;

// Calls fn with the first head dim that is at least d, or with the last one if
// none is, as a std::integral_constant.
template <int kFirst, int... kOthers, typename Fn>
auto WithHeadDim(HeadDimList<kFirst, kOthers...>, int64_t d, const Fn& fn) {
  if constexpr (sizeof...(kOthers) > 0) {
    if (d > kFirst) return WithHeadDim(HeadDimList<kOthers...>(), d, fn);
  }
  return fn(std::integral_constant<int, kFirst>());
}

// Calls fn with the head dim of the kernels that run head dim d, which depends
// on whether scores have a soft cap, and with that, as std::integral_constants.
template <typename HeadDims, typename SoftCapHeadDims, typename Fn>
auto WithKernels(HeadDims without, SoftCapHeadDims with, bool soft_cap,
                 int64_t d, const Fn& fn) {
  if (soft_cap) {
    return WithHeadDim(with, d,
                       [&](auto dim) { return fn(dim, std::true_type()); });
  }
  return WithHeadDim(without, d,
                     [&](auto dim) { return fn(dim, std::false_type()); });
}

template <int... kDims>
constexpr int LargestOf(HeadDimList<kDims...>) {
  return std::max({kDims...});
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_WITH_HEAD_DIM_H_
