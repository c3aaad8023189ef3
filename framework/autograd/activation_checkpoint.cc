#include "framework/autograd/activation_checkpoint.h"

#include <memory>
#include <utility>

#include "ATen/ATen.h"
#include "framework/params/activation_arena.h"
#include "framework/program/random_state.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Segment = std::function<at::Tensor(const at::Tensor&)>;

// What the second run needs beside x; rides in the context as one value.
struct Replay : torch::CustomClassHolder {
  Replay(Segment fn, RandomState random)
      : fn(std::move(fn)), random(std::move(random)) {}
  const Segment fn;
  const RandomState random;
};

class CheckpointFunction
    : public torch::autograd::Function<CheckpointFunction> {
 public:
  // `anchor` only has to require grad; see Checkpointed().
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& anchor, const Segment& fn) {
    ctx->save_for_backward({x});
    ctx->saved_data["replay"] = c10::IValue::make_capsule(
        c10::make_intrusive<Replay>(fn, RandomState::Now(x.device())));
    // What the first run makes dies with it, which an arena cannot use.
    const ActivationArenaScope no_arena(nullptr);
    return fn(x);
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const auto capsule = ctx->saved_data["replay"].toCapsule();
    const Replay& replay = static_cast<const Replay&>(*capsule);
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_(
        ctx->needs_input_grad(0));
    at::Tensor y;
    {
      const at::AutoGradMode recording(true);
      const ScopedRandomState random(replay.random, x.device());
      y = replay.fn(x);
    }
    // A pass of its own, to all leaves: the segment's ops write their
    // parameters' gradients even where x is a constant.
    if (y.requires_grad()) torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Checkpointed(Segment fn, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return fn(x);
  // The first run records nothing, so autograd cannot see the parameters that
  // fn reads. Where x is a constant an empty leaf stands for them; otherwise
  // x's own edge leads here.
  const at::Tensor anchor =
      at::empty({0}, at::kFloat).requires_grad_(!x.requires_grad());
  return CheckpointFunction::apply(x, anchor, fn);
}

}  // namespace tessera
