#include "attention_backends/document_bounds.h"

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/base/check.h"
#include "framework/cuda/cuda_build.h"

namespace tessera {

void DocumentBounds(const at::Tensor& positions, const at::Tensor& bounds) {
  const int64_t m = positions.size(0), b = positions.size(1),
                s = positions.size(2);
  TESSERA_CHECK(bounds.sizes() == at::IntArrayRef({m, 2, b, s}) &&
                    positions.is_contiguous() && bounds.is_contiguous(),
                "bounds of [", m, ", ", b, ", ", s, "]");
  if constexpr (kCudaBuild) {
    if (positions.is_cuda()) return cuda::DocumentBounds(positions, bounds);
  }
  const int64_t* position = positions.const_data_ptr<int64_t>();
  for (int64_t micro_batch = 0; micro_batch < m; ++micro_batch) {
    int* begins = bounds[micro_batch][0].mutable_data_ptr<int>();
    int* ends = bounds[micro_batch][1].mutable_data_ptr<int>();
    for (int64_t row = 0; row < b; ++row) {
      int64_t end = s;
      for (int64_t i = s - 1; i >= 0; --i) {
        begins[i] = static_cast<int>(i - position[i]);
        ends[i] = static_cast<int>(end);
        if (position[i] == 0) end = i;
      }
      position += s;
      begins += s;
      ends += s;
    }
  }
}

}  // namespace tessera
