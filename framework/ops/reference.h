#ifndef FRAMEWORK_OPS_REFERENCE_H_
#define FRAMEWORK_OPS_REFERENCE_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/ops/parameter_grad.h"
#include "framework/ops/rope.h"

namespace tessera {

// FP64 for FP64, otherwise FP32: what the ops compute and reduce in.
inline at::ScalarType ArithmeticDtype(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

struct RmsNormOut {
  at::Tensor y;  // x's shape
  at::Tensor r;  // [rows], arithmetic dtype: 1 / root mean square
};

struct CrossEntropyOut {
  at::Tensor loss;  // scalar, arithmetic dtype
  at::Tensor lse;   // [N], arithmetic dtype: log sum_v exp(logits)
};

// The ops without autograd, in ATen, on any device and in any float dtype: the
// oracle of cuda_ops.h and host_ops.h, which have the same functions.
// The equations are those of the ops' own headers.
namespace reference {

// x: [..., C]; gain: [C].
RmsNormOut RmsNormForward(const at::Tensor& x, const at::Tensor& gain,
                          double eps, at::ScalarType out_dtype);
// Returns dx in x's dtype; writes dg unless `gain_grad.grad` is undefined.
at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& r, const at::Tensor& gain,
                           const GradTarget& gain_grad);

// x: [B, S, heads, D], contiguous, rotated in place. `inverse` rotates by the
// opposite angle.
void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse);

// ab: [..., 2F] to h: [..., F].
at::Tensor SwiGluForward(const at::Tensor& ab);
// Writes d(ab), contiguous; may be ab's own memory.
void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab);

// Logits that cross entropy holds in the arithmetic dtype at a time: 64 MiB of
// FP32, small next to the logits of a large vocabulary and large enough to keep
// a device busy.
inline constexpr int64_t kCrossEntropyChunk = int64_t{1} << 24;

// logits: [N, V]; targets: [N]. Processes chunks of as many rows as have
// `chunk_elements` logits, at least one.
CrossEntropyOut CrossEntropyForward(
    const at::Tensor& logits, const at::Tensor& targets,
    int64_t chunk_elements = kCrossEntropyChunk);
// The loss alone, from log sum exp.
at::Tensor CrossEntropyLoss(const at::Tensor& logits, const at::Tensor& targets,
                            const at::Tensor& lse);
// dloss: scalar on the device. Writes dlogits, contiguous; may be the logits'
// own memory.
void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits,
                          int64_t chunk_elements = kCrossEntropyChunk);

}  // namespace reference
}  // namespace tessera

#endif  // FRAMEWORK_OPS_REFERENCE_H_
