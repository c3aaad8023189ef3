#ifndef FRAMEWORK_OPS_PARAMETER_GRAD_H_
#define FRAMEWORK_OPS_PARAMETER_GRAD_H_

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"
#include "framework/program/op.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {

// Claims the parameter's gradient; once per op and backward pass.
GradTarget ClaimGrad(Parameter& parameter);

// Keeps the address of a parameter in an op's context. Values are read again
// in the backward pass, not saved: the store outlives every graph.
void SaveParameter(torch::autograd::AutogradContext* ctx, Parameter* parameter);
Parameter& SavedParameter(torch::autograd::AutogradContext* ctx);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_PARAMETER_GRAD_H_
