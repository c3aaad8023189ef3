#include "framework/ops/embedding.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "framework/ops/parameter_grad.h"
#include "framework/ops/reference.h"
#include "framework/params/activation_arena.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// sums[id] += row for every row of `values`, the same order on every run: one
// thread walks the rows on a CPU, sorted segments are summed on a GPU.
void AddRows(at::Tensor sums, const at::Tensor& ids, const at::Tensor& values) {
  if (sums.is_cuda()) {
    // index_put_() itself would make the host wait while it checks the ids.
    at::_index_put_impl_(sums, {ids}, values, /*accumulate=*/true,
                         /*unsafe=*/true);
  } else {
    sums.index_add_(0, ids, values);
  }
}

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table,
                            const at::Tensor& ids, Parameter* parameter,
                            at::ScalarType out_dtype) {
    ctx->save_for_backward({ids});
    SaveParameter(ctx, parameter);
    if (table.scalar_type() != out_dtype) {
      return at::embedding(table, ids).to(out_dtype);
    }
    ReachParameter(*parameter);
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(table.size(1));
    const at::Tensor x = EmptyActivation(shape, table.options());
    at::Tensor rows = x.view({-1, table.size(1)});
    at::index_select_out(rows, table, 0, ids.reshape({-1}));
    return x;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    if (ctx->needs_input_grad(0)) {
      GradTarget target = ClaimGrad(SavedParameter(ctx));
      const at::Tensor ids = ctx->get_saved_variables()[0].reshape({-1});
      const at::ScalarType dtype = ArithmeticDtype(grads[0].scalar_type());
      const at::Tensor dx = grads[0].reshape({-1, grads[0].size(-1)}).to(dtype);
      if (target.grad.scalar_type() == dtype) {
        if (!target.accumulate) target.grad.zero_();
        AddRows(target.grad, ids, dx);
      } else {
        at::Tensor sums = at::zeros(target.grad.sizes(), dx.options());
        AddRows(sums, ids, dx);
        WriteGrad(target, sums);
      }
    }
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Embedding(const at::Tensor& ids, Parameter& table,
                     at::ScalarType out_dtype) {
  return EmbeddingFunction::apply(table.As(table.master().scalar_type()), ids,
                                  &table, out_dtype);
}

}  // namespace tessera
