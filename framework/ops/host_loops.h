#ifndef FRAMEWORK_OPS_HOST_LOOPS_H_
#define FRAMEWORK_OPS_HOST_LOOPS_H_

#include <cstdint>

// The ops' equations on FP32 rows in host memory, in loops that the compiler
// vectorises and that read each element from memory once.

namespace tessera {
namespace host {

// y = x r o gain; returns r = (mean(x^2) + eps)^(-1/2).
float Normalize(const float* x, const float* gain, float eps, int64_t count,
                float* y);

// dx; adds dy o x r to `dgain` unless that is null.
void NormalizeGradient(const float* dy, const float* x, const float* gain,
                       float r, int64_t count, float* dx, float* dgain);

// Rotates `pairs` pairs in place by the angles of cos and sin, or by their
// opposites for `sign` -1: (0, 1), (2, 3), ... or (0, pairs), (1, pairs + 1),
// ...
void RotateInterleaved(const float* cos, const float* sin, float sign,
                       int64_t pairs, float* x);
void RotateHalved(const float* cos, const float* sin, float sign, int64_t pairs,
                  float* x);

// log sum_i exp(x_i).
float LogSumExp(const float* x, int64_t count);

// d_x = scale exp(x - lse); may be x.
void ScaledSoftmax(const float* x, float lse, float scale, int64_t count,
                   float* d_x);

// h = silu(a) o b.
void SwiGlu(const float* a, const float* b, int64_t count, float* h);

// d_a and d_b; may be a and b.
void SwiGluGradient(const float* a, const float* b, const float* dh,
                    int64_t count, float* d_a, float* d_b);

}  // namespace host
}  // namespace tessera

#endif  // FRAMEWORK_OPS_HOST_LOOPS_H_
