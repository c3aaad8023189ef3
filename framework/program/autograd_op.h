#ifndef FRAMEWORK_PROGRAM_AUTOGRAD_OP_H_
#define FRAMEWORK_PROGRAM_AUTOGRAD_OP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "framework/program/program.h"

namespace tessera {

// Any differentiable function in plain LibTorch, as an op of a program: the
// quickest way to try an idea.
//
//   Value y = AutogradOp(b, {.name = "relu2",
//                            .function = [](const std::vector<at::Tensor>& in)
//                            {
//                              return in[0].relu().square();
//                            }},
//                        {x}, b.type(x));
struct AutogradFunction {
  std::string name;
  // Depends only on its arguments and LibTorch's generators; returns a new
  // tensor.
  std::function<at::Tensor(const std::vector<at::Tensor>&)> function;
  bool random = false;  // draws from LibTorch's generators (dropout)
  // The costs that the plan assumes.
  int64_t forward_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;
  Cost forward_cost;  // bytes = 0: each operand and the result once
};

// Adds the function as an op. Backward runs the function again under autograd,
// so only the operands are kept; it costs one forward call more than an op with
// its own backward. All floating-point operands get gradients, parameters
// included.
Value AutogradOp(ProgramBuilder& b, AutogradFunction function,
                 std::vector<Value> operands, TensorType result);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_AUTOGRAD_OP_H_
