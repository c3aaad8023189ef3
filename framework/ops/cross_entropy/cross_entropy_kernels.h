#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_KERNELS_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/base/ignored_target.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"

namespace tessera {

// The rows of a batch.
struct CrossEntropyRows {
  // [N, V]; each row contiguous. Rows may be apart for kReference and kCuda,
  // which may write between them.
  at::Tensor logits;
  at::Tensor targets;  // [N], in [0, V) or kIgnoredTarget
  CrossEntropyOptions options;
};

// Cross entropy (cross_entropy.h) over rows.
struct CrossEntropyKernels {
  // Writes loss, a scalar, and lse (cross_entropy_math.h), [N], whose dtype is
  // used for all arithmetic. kCuda's lse is [2, N]: the FP32 value and its
  // rounding error.
  void (*forward)(const CrossEntropyRows& in, const at::Tensor& loss,
                  const at::Tensor& lse);
  // dloss: scalar on the device. Writes dlogits, which may be the logits.
  void (*backward)(const CrossEntropyRows& in, const at::Tensor& dloss,
                   const at::Tensor& lse, at::Tensor dlogits);

  static const CrossEntropyKernels kReference;
  static const CrossEntropyKernels kCpu;   // FP32
  static const CrossEntropyKernels kCuda;  // lse in FP32
};

namespace reference {

// Number of logits that the reference converts to the arithmetic dtype at a
// time: 64 MiB of FP32, small next to the logits of a large vocabulary and
// large enough to keep a device busy.
inline constexpr int64_t kCrossEntropyChunk = int64_t{1} << 24;

// The reference, in chunks of rows with about `chunk_elements` logits, at least
// one row.
void CrossEntropyForward(const CrossEntropyRows& in, const at::Tensor& loss,
                         const at::Tensor& lse,
                         int64_t chunk_elements = kCrossEntropyChunk);
void CrossEntropyBackward(const CrossEntropyRows& in, const at::Tensor& dloss,
                          const at::Tensor& lse, at::Tensor dlogits,
                          int64_t chunk_elements = kCrossEntropyChunk);

}  // namespace reference

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_KERNELS_H_
