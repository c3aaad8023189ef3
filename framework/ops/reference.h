#ifndef FRAMEWORK_OPS_REFERENCE_H_
#define FRAMEWORK_OPS_REFERENCE_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/ops/rope.h"
#include "framework/program/op.h"

namespace tessera {

// FP64 for FP64, otherwise FP32: what the ops compute and reduce in.
inline at::ScalarType ArithmeticDtype(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

// The ops' arithmetic in ATen, on any device and in any float dtype: the
// oracle of cuda_ops.h and host_ops.h, which have the same functions.
// The equations are those of the ops' own headers.
namespace reference {

// x: [..., C]; gain: [C]. Writes y, of x's shape, and r, [rows], in whose dtype
// everything is computed.
void RmsNormForward(const at::Tensor& x, const at::Tensor& gain, double eps,
                    const at::Tensor& y, const at::Tensor& r);
// Writes dx and dg, each unless it is undefined.
void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& r, const at::Tensor& gain,
                     const GradTarget& gain_grad, const at::Tensor& dx);

// x: [B, S, heads, D], contiguous, rotated in place. `inverse` rotates by the
// opposite angle.
void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse);

// ab: [..., 2F] to h: [..., F].
void SwiGluForward(const at::Tensor& ab, const at::Tensor& h);
// Writes d(ab), contiguous; may be ab's own memory.
void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab);

// Logits that cross entropy holds in the arithmetic dtype at a time: 64 MiB of
// FP32, small next to the logits of a large vocabulary and large enough to keep
// a device busy.
inline constexpr int64_t kCrossEntropyChunk = int64_t{1} << 24;

// logits: [N, V]; targets: [N]. Writes loss, a scalar, and lse, [N]: log sum_v
// exp(logits), in whose dtype everything is computed. Processes chunks of as
// many rows as have `chunk_elements` logits, at least one.
void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets,
                         const at::Tensor& loss, const at::Tensor& lse,
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
