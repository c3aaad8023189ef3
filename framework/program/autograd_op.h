#ifndef FRAMEWORK_PROGRAM_AUTOGRAD_OP_H_
#define FRAMEWORK_PROGRAM_AUTOGRAD_OP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "framework/program/program.h"

namespace tessera {

// What a researcher writes to try an idea: any differentiable function in plain
// LibTorch, as an op of a program.
//
//   Value y = AutogradOp(b, {.name = "relu2",
//                            .function = [](const std::vector<at::Tensor>& in)
//                            {
//                              return in[0].relu().square();
//                            }},
//                        {x}, b.type(x));
struct AutogradFunction {
  std::string name;
  // Of its arguments and LibTorch's generators only; returns a new tensor.
  std::function<at::Tensor(const std::vector<at::Tensor>&)> function;
  bool random = false;  // draws from LibTorch's generators (dropout)
  // What the plan is to assume.
  int64_t forward_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;
  Cost forward_cost;  // bytes 0: operands and result once
};

// Backward runs the function again with LibTorch's autograd and differentiates
// it, so the operands are all that is kept: slower than an op with a written
// backward by one forward call. Operands of a float dtype get gradients,
// parameters too.
Value AutogradOp(ProgramBuilder& b, AutogradFunction function,
                 std::vector<Value> operands, TensorType result);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_AUTOGRAD_OP_H_
