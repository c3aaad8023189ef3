#ifndef TESTS_FRAMEWORK_OPS_OPS_AS_FUNCTIONS_H_
#define TESTS_FRAMEWORK_OPS_OPS_AS_FUNCTIONS_H_

#include <functional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"
#include "framework/ops/rope/rope.h"
#include "framework/params/parameter_store.h"
#include "framework/program/program.h"

namespace tessera::testing {

// Ops as differentiable functions of tensors, for comparison with LibTorch's
// autograd: each call builds a program of one op, runs it with an Executor, and
// runs its backward when autograd calls it. Gradients of parameters are written
// (=) or added (+=) as described in tests/testing/gradient_state.h.
at::Tensor Linear(const at::Tensor& x, Parameter& weight);
at::Tensor RmsNorm(const at::Tensor& x, Parameter& gain, double eps,
                   at::ScalarType out_dtype);
at::Tensor Embedding(const at::Tensor& ids, Parameter& table,
                     at::ScalarType out_dtype);
at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table,
                int64_t rotated_heads);
at::Tensor SwiGlu(const at::Tensor& ab);
at::Tensor AddResidual(const at::Tensor& x, const at::Tensor& delta);
at::Tensor CrossEntropySum(const at::Tensor& logits, const at::Tensor& targets,
                           const CrossEntropyOptions& options = {});

// The loss of CrossEntropySum() in plain LibTorch, whose autograd
// differentiates it. As in autocast, narrow logits are converted to FP32 first.
at::Tensor PlainCrossEntropySum(const at::Tensor& logits,
                                const at::Tensor& targets,
                                const CrossEntropyOptions& options = {});

// Any program with one result. `build` gets a value for each input, and the
// parameter if there is one. Other parameters of its store have the indexes
// after it.
struct FunctionOfTensors {
  std::function<Value(ProgramBuilder& b, const std::vector<Value>& inputs,
                      Weight weight)>
      build;
  PrecisionPolicy precision;
  Parameter* parameter = nullptr;
};
at::Tensor RunAsFunction(const FunctionOfTensors& function,
                         const std::vector<at::Tensor>& inputs);
// A policy for tensors of `dtype` whose statistics and losses are at least
// FP32.
PrecisionPolicy PolicyFor(at::ScalarType dtype, at::ScalarType master);

}  // namespace tessera::testing

#endif  // TESTS_FRAMEWORK_OPS_OPS_AS_FUNCTIONS_H_
