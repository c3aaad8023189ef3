#ifndef FRAMEWORK_OPS_PARAMETER_GRAD_H_
#define FRAMEWORK_OPS_PARAMETER_GRAD_H_

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {

// A parameter's gradient as one op is about to write it.
struct GradTarget {
  at::Tensor grad;          // a view of the flat buffer, in that buffer's dtype
  bool accumulate = false;  // += instead of =
};

// Claims the parameter's gradient; once per op and backward pass.
GradTarget ClaimGrad(Parameter& parameter);

// Writes or adds `value`, rounding once to the buffer's dtype.
void WriteGrad(const GradTarget& target, const at::Tensor& value);

// Keeps the address of a parameter in an op's context. Values are read again
// in the backward pass, not saved: the store outlives every graph.
void SaveParameter(torch::autograd::AutogradContext* ctx, Parameter* parameter);
Parameter& SavedParameter(torch::autograd::AutogradContext* ctx);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_PARAMETER_GRAD_H_
