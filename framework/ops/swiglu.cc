#include "framework/ops/swiglu.h"

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/saved_memory.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class SwiGluFunction : public torch::autograd::Function<SwiGluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ab) {
    ctx->save_for_backward({ab});
    return TESSERA_DISPATCH(ab, SwiGluForward, ab);
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const at::Tensor ab = ctx->get_saved_variables()[0];
    const at::Tensor d_ab = TakeGradientMemory(ab);
    TESSERA_DISPATCH(ab, SwiGluBackward, ab, grads[0], d_ab);
    return {d_ab};
  }
};

}  // namespace

at::Tensor SwiGlu(const at::Tensor& ab) {
  TESSERA_CHECK(ab.size(-1) % 2 == 0, "columns: ", ab.size(-1));
  return SwiGluFunction::apply(ab);
}

}  // namespace tessera
