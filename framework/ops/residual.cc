#include "framework/ops/residual.h"

#include <utility>

#include "ATen/ATen.h"
#include "framework/params/activation_arena.h"
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
    // Through an alias, as RoPE does. One launch in either case: the sum
    // converts its narrower operand as it reads.
    at::Tensor sum = delta.scalar_type() == x.scalar_type()
                         ? delta.tensor_data()
                         : EmptyActivation(x.sizes(), x.options());
    at::add_out(sum, x, delta);
    return sum;
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

at::Tensor AddResidual(const at::Tensor& x, at::Tensor delta) {
  return AddResidualFunction::apply(x, std::move(delta));
}

}  // namespace tessera
