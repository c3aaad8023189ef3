#include <cmath>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/base/vector_math.h"
#include "framework/ops/cpu_rows.h"
#include "framework/ops/rope/rope_kernels.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace cpu {

// (u, v) times (cos + i sin).
__attribute__((always_inline)) inline void RotatePair(float cos, float sin,
                                                      float& u, float& v) {
  const float rotated_u = u * cos - v * sin;
  v = v * cos + u * sin;
  u = rotated_u;
}

TESSERA_CPU_CLONES
void RotateInterleaved(const float* cos, const float* sin, float sign,
                       int64_t pairs, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    RotatePair(cos[i], sign * sin[i], x[2 * i], x[2 * i + 1]);
  }
}

TESSERA_CPU_CLONES
void RotateHalved(const float* cos, const float* sin, float sign, int64_t pairs,
                  float* x) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    RotatePair(cos[i], sign * sin[i], x[i], x[pairs + i]);
  }
}

}  // namespace cpu
namespace {

void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse) {
  const int64_t positions = x.size(1), heads = x.size(2), head_dim = x.size(3);
  const int64_t pairs = head_dim / 2;
  const auto rotate = table.layout == RopeLayout::kHalved
                          ? cpu::RotateHalved
                          : cpu::RotateInterleaved;
  const float* const cos = table.cos.const_data_ptr<float>();
  const float* const sin = table.sin.const_data_ptr<float>();
  float* const data = x.mutable_data_ptr<float>();
  const int64_t* const given = table.token_positions_data();
  ForEachRow(x.size(0) * positions, heads * head_dim, [&](int64_t token) {
    const int64_t position = given ? given[token] : token % positions;
    const int64_t angle = position * pairs;
    float* const first = data + token * heads * head_dim;
    for (int64_t head = 0; head < rotated_heads; ++head) {
      rotate(cos + angle, sin + angle, inverse ? -1 : 1, pairs,
             first + head * head_dim);
    }
  });
}

}  // namespace

const RopeKernels RopeKernels::kCpu = {.rotate = Rotate};

}  // namespace tessera
