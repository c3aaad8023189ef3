#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_KERNELS_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/base/ignored_target.h"

namespace tessera {

// Cross entropy (cross_entropy.h) over the rows of contiguous tensors.
struct CrossEntropyKernels {
  // logits: [N, V]; targets: [N], in [0, V) or kIgnoredTarget. Writes loss, a
  // scalar, and lse, [N]: log sum_v exp(logits), in whose dtype everything is
  // computed. kCuda's lse is [2, N]: the FP32 number, and what is missing from
  // it to its value before rounding.
  void (*forward)(const at::Tensor& logits, const at::Tensor& targets,
                  const at::Tensor& loss, const at::Tensor& lse);
  // dloss: scalar on the device. Writes dlogits; may be the logits' own memory.
  void (*backward)(const at::Tensor& dloss, const at::Tensor& logits,
                   const at::Tensor& targets, const at::Tensor& lse,
                   at::Tensor dlogits);

  static const CrossEntropyKernels kReference;
  static const CrossEntropyKernels kCpu;   // FP32
  static const CrossEntropyKernels kCuda;  // lse in FP32
};

namespace reference {

// Logits that cross entropy holds in the arithmetic dtype at a time: 64 MiB of
// FP32, small next to the logits of a large vocabulary and large enough to keep
// a device busy.
inline constexpr int64_t kCrossEntropyChunk = int64_t{1} << 24;

// As above, in chunks of as many rows as have `chunk_elements` logits, at least
// one.
void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets,
                         const at::Tensor& loss, const at::Tensor& lse,
                         int64_t chunk_elements = kCrossEntropyChunk);
void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits,
                          int64_t chunk_elements = kCrossEntropyChunk);
// The loss, from log sum exp.
at::Tensor CrossEntropyLoss(const at::Tensor& logits, const at::Tensor& targets,
                            const at::Tensor& lse);

}  // namespace reference

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_KERNELS_H_
