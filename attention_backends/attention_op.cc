#include "attention_backends/attention_op.h"

#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/base/torch_status.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The spec as the autograd context can keep it.
struct SpecCapsule : torch::CustomClassHolder {
  explicit SpecCapsule(const SelfAttentionSpec& spec) : spec(spec) {}
  const SelfAttentionSpec spec;
};

// Views of a fused [B, S, H + 2 G, D] as [B, heads, S, D].
struct HeadSlices {
  at::Tensor q_bhsd, k_bgtd, v_bgtd;
};

HeadSlices SliceHeads(const at::Tensor& fused, const SelfAttentionSpec& spec) {
  const at::Tensor heads_first = fused.transpose(1, 2);
  const int64_t h = spec.query_heads, g = spec.kv_heads;
  return {heads_first.narrow(1, 0, h), heads_first.narrow(1, h, g),
          heads_first.narrow(1, h + g, g)};
}

AttentionArgs ArgsOf(const at::Tensor& qkv, const SelfAttentionSpec& spec) {
  const HeadSlices slices = SliceHeads(qkv, spec);
  AttentionArgs args;
  args.q_bhsd = slices.q_bhsd;
  args.k_bgtd = slices.k_bgtd;
  args.v_bgtd = slices.v_bgtd;
  args.scale = spec.scale;
  args.mask = spec.mask;
  args.deterministic = spec.deterministic;
  return args;
}

class SelfAttentionFunction
    : public torch::autograd::Function<SelfAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv,
                            const SelfAttentionSpec& spec) {
    AttentionArgs args = ArgsOf(qkv, spec);
    args.phases = spec.phases;
    AttentionOut out;
    ThrowIfError(spec.backend->Forward(args, &out));
    const at::Tensor o = out.o_bhsd.transpose(1, 2);
    variable_list saved = {qkv, o, out.lse_bhs};
    saved.insert(saved.end(), out.saved.begin(), out.saved.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["spec"] =
        at::IValue::make_capsule(c10::make_intrusive<SpecCapsule>(spec));
    return o;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& d_outputs) {
    const auto capsule = c10::static_intrusive_pointer_cast<SpecCapsule>(
        ctx->saved_data["spec"].toCapsule());
    const SelfAttentionSpec& spec = capsule->spec;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    AttentionOut out;
    out.o_bhsd = saved[1].transpose(1, 2);
    out.lse_bhs = saved[2];
    out.saved.assign(saved.begin() + 3, saved.end());

    at::Tensor d_qkv = at::empty_like(qkv);
    const HeadSlices slices = SliceHeads(d_qkv, spec);
    AttentionGrads grads{slices.q_bhsd, slices.k_bgtd, slices.v_bgtd};
    ThrowIfError(spec.backend->Backward(ArgsOf(qkv, spec), out,
                                        d_outputs[0].transpose(1, 2), &grads));
    return {d_qkv, at::Tensor()};
  }
};

}  // namespace

at::Tensor SelfAttention(const at::Tensor& qkv, const SelfAttentionSpec& spec) {
  TESSERA_CHECK(spec.backend != nullptr, "no backend");
  TESSERA_CHECK(qkv.dim() == 4 && qkv.is_contiguous() &&
                    qkv.size(2) == spec.query_heads + 2 * spec.kv_heads,
                "qkv has ", qkv.dim(), " dimensions; ", spec.query_heads,
                " + 2 x ", spec.kv_heads, " heads");
  return SelfAttentionFunction::apply(qkv, spec);
}

}  // namespace tessera
