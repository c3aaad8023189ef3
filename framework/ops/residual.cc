#include "framework/ops/residual.h"

#include "ATen/ATen.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AddResidualFunction
    : public torch::autograd::Function<AddResidualFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& delta) {
    ctx->saved_data["delta_dtype"] = delta.scalar_type();
    // One launch: the sum converts its narrower operand as it reads.
    return at::add(x, delta).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    at::Tensor d_delta;
    if (ctx->needs_input_grad(1)) {
      d_delta = grads[0].to(ctx->saved_data["delta_dtype"].toScalarType());
    }
    return {grads[0], d_delta};
  }
};

}  // namespace

at::Tensor AddResidual(const at::Tensor& x, const at::Tensor& delta) {
  return AddResidualFunction::apply(x, delta);
}

}  // namespace tessera
