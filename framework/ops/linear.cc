#include "framework/ops/linear.h"

#include "ATen/ATen.h"
#include "framework/ops/parameter_grad.h"
#include "framework/ops/rows.h"
#include "framework/ops/saved_memory.h"
#include "framework/params/activation_arena.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// dW (+)= dy^T x; dy: [rows, out], x: [rows, in].
void WriteWeightGrad(const GradTarget& target, const at::Tensor& dy,
                     const at::Tensor& x) {
  at::Tensor grad = target.grad;
  const at::Tensor dy_t = dy.t();
  if (grad.scalar_type() == x.scalar_type()) {
    if (target.accumulate) {
      at::addmm_out(grad, grad, dy_t, x);
    } else {
      at::mm_out(grad, dy_t, x);
    }
  } else if (x.is_cuda() && grad.scalar_type() == at::kFloat) {
    // cuBLAS reads narrow operands and keeps its FP32 sums.
    if (target.accumulate) {
      at::addmm_out(grad, grad, dy_t, x, at::kFloat);
    } else {
      at::mm_out(grad, dy_t, x, at::kFloat);
    }
  } else {
    // Products on a CPU have no result wider than their operands.
    const at::ScalarType dtype =
        at::promote_types(grad.scalar_type(), x.scalar_type());
    WriteGrad(target, at::mm(dy_t.to(dtype), x.to(dtype)));
  }
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, Parameter* parameter) {
    if (weight.requires_grad()) ctx->save_for_backward({x});
    SaveParameter(ctx, parameter);
    ctx->saved_data["dtype"] = x.scalar_type();
    // Written through a 2-D view, so that the result itself is no view and ops
    // that work in place may follow.
    // Clear of this weight's gradient: SwiGLU's backward turns its input into
    // the gradient that is alive while that is written.
    at::Tensor y = EmptyActivation(WithWidth(x, weight.size(0)), x.options());
    ReachParameter(*parameter);
    at::Tensor y_rows = y.view({-1, weight.size(0)});
    at::mm_out(y_rows, Rows(x), weight.t());
    return y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    Parameter& parameter = SavedParameter(ctx);
    const at::Tensor& dy = grads[0];
    const at::Tensor dy_rows = Rows(dy);
    // The weight's gradient first: it is the last that reads x.
    at::Tensor x;
    if (ctx->needs_input_grad(1)) {
      x = ctx->get_saved_variables()[0];
      WriteWeightGrad(ClaimGrad(parameter), dy_rows, Rows(x));
    }
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) {
      const at::Tensor& weight =
          parameter.As(ctx->saved_data["dtype"].toScalarType());
      dx = x.defined() ? TakeGradientMemory(x)
                       : at::empty(WithWidth(dy, weight.size(1)), dy.options());
      at::Tensor dx_rows = dx.view({-1, weight.size(1)});
      at::mm_out(dx_rows, dy_rows, weight);
    }
    return {dx, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Linear(const at::Tensor& x, Parameter& weight) {
  return LinearFunction::apply(x, weight.As(x.scalar_type()), &weight);
}

}  // namespace tessera
