#include "framework/program/op.h"

#include "ATen/ATen.h"
#include "framework/base/check.h"

namespace tessera {

void WriteGrad(const GradTarget& target, const at::Tensor& value) {
  at::Tensor grad = target.grad;
  if (target.accumulate) {
    grad.add_(value);
  } else {
    grad.copy_(value);
  }
}

Cost& Cost::operator+=(const Cost& other) {
  flops += other.flops;
  bytes += other.bytes;
  product_flops += other.product_flops;
  products += other.products;
  return *this;
}

void Op::ForwardBackward(const BackwardArgs&) const {
  TESSERA_CHECK(false, kind(), " has no joint backward pass");
}

int64_t Op::ForwardBytes() const {
  int64_t bytes = 0;
  for (const TensorType& type : operands_) bytes += type.bytes();
  for (const TensorType& type : results_) bytes += type.bytes();
  return bytes;
}

int64_t Op::BackwardBytes(Positions wanted) const {
  const BackwardReads reads = ReadsInBackward(wanted);
  int64_t bytes = results_[0].bytes();  // the incoming gradient
  for (int i = 0; i < num_operands(); ++i) {
    if (reads.operands.Has(i)) bytes += operands_[i].bytes();
    if (wanted.Has(i)) bytes += operands_[i].bytes();
  }
  for (int i = 0; i < num_results(); ++i) {
    if (reads.results.Has(i)) bytes += results_[i].bytes();
  }
  return bytes;
}

}  // namespace tessera
