#include "framework/ops/rms_norm.h"

#include "ATen/ATen.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/parameter_grad.h"
#include "framework/params/activation_arena.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormOptions {
  double eps = 0;
  at::ScalarType out_dtype = at::kFloat;
};

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& gain, Parameter* parameter,
                            const RmsNormOptions& options) {
    RmsNormOut out = TESSERA_DISPATCH(x, RmsNormForward, x, gain, options.eps,
                                      options.out_dtype);
    // y clear of the gain's gradient: the product behind it may turn y into
    // the dy that is alive while that is written.
    ReachParameter(*parameter);
    ctx->save_for_backward({x, out.r});
    SaveParameter(ctx, parameter);
    return out.y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &r = saved[1];
    Parameter& parameter = SavedParameter(ctx);
    const GradTarget gain_grad =
        ctx->needs_input_grad(1) ? ClaimGrad(parameter) : GradTarget();
    const at::Tensor dx = TESSERA_DISPATCH(x, RmsNormBackward, grads[0], x, r,
                                           parameter.master(), gain_grad);
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, Parameter& gain, double eps,
                   at::ScalarType out_dtype) {
  return RmsNormFunction::apply(
      x, gain.As(gain.master().scalar_type()), &gain,
      RmsNormOptions{.eps = eps, .out_dtype = out_dtype});
}

}  // namespace tessera
