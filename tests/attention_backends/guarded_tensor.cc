#include "tests/attention_backends/guarded_tensor.h"

#include <cstdint>
#include <limits>

#include "ATen/ATen.h"

namespace tessera::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Rows of the largest tile of a kernel, which may extend beyond the last row.
constexpr int64_t kRowsBefore = 1, kRowsBehind = 128;
constexpr int64_t kHeadsBefore = 1, kHeadsBehind = 2;

// Elements around a dense tensor: such a tile at the largest head dim.
constexpr int64_t kDenseGuard = 128 * 256;

int64_t CountNumbers(const at::Tensor& x) {
  return x.isnan().logical_not().sum().item<int64_t>();
}

}  // namespace

GuardedTensor::GuardedTensor(const at::Tensor& values_bhsd)
    : values_(values_bhsd) {
  const int64_t heads = values_.size(1), rows = values_.size(2);
  fused_ = at::full({values_.size(0), kRowsBefore + rows + kRowsBehind,
                     kHeadsBefore + heads + kHeadsBehind, values_.size(3)},
                    kNan, values_.options());
  slice_ = fused_.narrow(1, kRowsBefore, rows)
               .narrow(2, kHeadsBefore, heads)
               .transpose(1, 2);
  slice_.copy_(values_);
}

GuardedTensor GuardedTensor::Unwritten(const at::Tensor& like_bhsd) {
  return GuardedTensor(at::full_like(like_bhsd, kNan));
}

bool GuardedTensor::IsIntact() const {
  return CountNumbers(fused_) == CountNumbers(slice_);
}

bool GuardedTensor::IsUnchanged() const {
  return IsIntact() && at::equal(slice_, values_);
}

// The driver makes the copies: compute-sanitizer's initcheck does not see what
// a kernel stores by the copy engine, and would report kernels that read it.
DenseBetweenNans::DenseBetweenNans(const at::Tensor& dense)
    : values_(dense.clone()),
      all_(at::full({kDenseGuard + dense.numel() + kDenseGuard}, kNan,
                    dense.options())),
      tensor_(all_.as_strided(dense.sizes(), dense.strides(), kDenseGuard)) {
  tensor_.copy_(values_);
}

bool DenseBetweenNans::IsUnchanged() const {
  return CountNumbers(all_) == CountNumbers(values_) &&
         at::equal(tensor_, values_);
}

}  // namespace tessera::testing
