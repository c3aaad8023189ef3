#include "framework/ops/cross_entropy.h"

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/saved_memory.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class CrossEntropyFunction
    : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets) {
    CrossEntropyOut out =
        TESSERA_DISPATCH(logits, CrossEntropyForward, logits, targets);
    ctx->save_for_backward({logits, targets, out.lse});
    return out.loss;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &logits = saved[0], &targets = saved[1], &lse = saved[2];
    const at::Tensor dlogits = TakeGradientMemory(logits);
    TESSERA_DISPATCH(logits, CrossEntropyBackward, grads[0], logits, targets,
                     lse, dlogits);
    return {dlogits, at::Tensor()};
  }
};

}  // namespace

at::Tensor CrossEntropySum(const at::Tensor& logits,
                           const at::Tensor& targets) {
  TESSERA_CHECK(targets.scalar_type() == at::kLong, "targets must be int64");
  TESSERA_CHECK(logits.numel() == targets.numel() * logits.size(-1),
                "one target for each row of logits");
  // An ordinary view would keep its base alive, and with it the logits that
  // backward writes the gradient over.
  const at::Tensor rows =
      at::_unsafe_view(logits.contiguous(), {-1, logits.size(-1)});
  return CrossEntropyFunction::apply(rows, targets.reshape({-1}));
}

}  // namespace tessera
