#include "attention_backends/document_bounds.h"

#include <cstdint>
#include <limits>

#include "ATen/ATen.h"
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

void HideOtherDocuments(const at::Tensor& bounds, int64_t first_key,
                        bool hide_later, const at::Tensor& scores) {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const at::Tensor key =
      at::arange(first_key, first_key + scores.size(3), bounds.options());
  const at::Tensor begin = bounds[0].unsqueeze(2), end = bounds[1].unsqueeze(2);
  // One after the other, so that only one of them takes memory.
  scores.masked_fill_((key < begin).unsqueeze(1), kHidden);
  if (hide_later) scores.masked_fill_((key >= end).unsqueeze(1), kHidden);
}

int64_t HideOtherDocumentsBytes(int64_t batch, int64_t queries, int64_t keys) {
  // Which keys are hidden, and the keys' numbers.
  return batch * queries * keys + keys * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace tessera
