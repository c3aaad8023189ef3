#include "attention_backends/attention_op.h"

#include <memory>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
#include "framework/base/torch_status.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

constexpr int kQkv = 0;  // operand; then documents and sinks, if there are any
constexpr int kO = 0;    // result; after it what the backend saves, and L

// [B, heads, S, D] views of a fused [B, S, H + 2 G, D].
struct HeadSlices {
  at::Tensor q_bhsd, k_bgtd, v_bgtd;
};

class SelfAttentionOp : public Op {
 public:
  // `memory` is spec.backend->Plan(spec.problem).
  SelfAttentionOp(const SelfAttentionSpec& spec, AttentionMemory memory,
                  std::shared_ptr<const ProductChoices> products)
      : spec_(spec),
        memory_(std::move(memory)),
        products_(std::move(products)) {}

  absl::string_view kind() const override { return "attention"; }
  std::string kernel() const override {
    return std::string(spec_.backend->name());
  }

  const AttentionProblem& problem() const { return spec_.problem; }

  void Forward(const ForwardArgs& args) const override {
    AttentionArgs call = ArgsOf(args.operands);
    call.phases = args.phases;
    AttentionOut out;
    if (!memory_.allocates) out = OutOf(args.results);
    ThrowIfError(spec_.backend->Forward(call, &out));
    if (!memory_.allocates) {
      TESSERA_CHECK(out.o_bhsd.is_alias_of(args.results[kO]), kernel(),
                    " did not write O to the memory that it was given");
      return;
    }
    args.results[kO] = out.o_bhsd.transpose(1, 2);
    for (size_t i = 0; i < memory_.saved.size(); ++i) {
      args.results[kO + 1 + i] = out.saved[i];
    }
    if (memory_.lse.has_value()) args.results.back() = out.lse_bhs;
  }

  void Backward(const BackwardArgs& args) const override {
    AttentionArgs call = ArgsOf(args.operands);
    call.phases = args.phases;
    const at::Tensor& d_qkv = args.d_operands[kQkv].grad;
    const HeadSlices slices =
        Slice(d_qkv.defined() ? d_qkv : at::empty_like(args.operands[kQkv]));
    AttentionGrads grads{slices.q_bhsd, slices.k_bgtd, slices.v_bgtd};
    const GradTarget d_sinks =
        spec_.problem.sinks ? args.d_operands.back() : GradTarget();
    if (d_sinks.grad.defined()) grads.d_sinks = at::empty_like(call.sinks);
    ThrowIfError(spec_.backend->Backward(
        call, OutOf(args.results), args.d_results[kO].transpose(1, 2), &grads));
    if (d_sinks.grad.defined()) WriteGrad(d_sinks, grads.d_sinks);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = Positions::All(num_operands()),
            .results = Positions::All(num_results())};
  }
  bool AllocatesResults() const override { return memory_.allocates; }
  int64_t ForwardWorkspaceBytes() const override {
    return memory_.forward_bytes;
  }
  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    return memory_.backward_bytes +
           (wanted.Has(kQkv) ? 0 : operand(kQkv).bytes());
  }

  std::vector<MatrixProduct> Products() const override {
    const at::Tensor qkv = WithoutMemory(operand(kQkv));
    const HeadSlices d_qkv = Slice(at::empty_like(qkv));
    return spec_.backend->Products(ArgsOf(absl::MakeConstSpan(&qkv, 1)),
                                   {d_qkv.q_bhsd, d_qkv.k_bgtd, d_qkv.v_bgtd});
  }

  Cost ForwardCost() const override {
    return {.flops = Flops(2),
            .bytes = ForwardBytes(),
            .product_flops = Flops(2),
            .products = 2};
  }
  Cost BackwardCost(Positions wanted) const override {
    return {.flops = Flops(4),
            .bytes = BackwardBytes(wanted),
            .product_flops = Flops(4),
            .products = 4};
  }

 private:
  HeadSlices Slice(const at::Tensor& fused) const {
    const at::Tensor heads_first = fused.transpose(1, 2);
    const int64_t h = spec_.problem.h, g = spec_.problem.g;
    return {heads_first.narrow(1, 0, h), heads_first.narrow(1, h, g),
            heads_first.narrow(1, h + g, g)};
  }

  AttentionArgs ArgsOf(absl::Span<const at::Tensor> operands) const {
    const HeadSlices slices = Slice(operands[kQkv]);
    AttentionArgs args;
    if (operands.size() > 1) {  // otherwise only the shapes of Q, K and V count
      if (spec_.problem.documents) args.documents = operands[1];
      if (spec_.problem.sinks) args.sinks = Sinks(operands.back());
    }
    args.q_bhsd = slices.q_bhsd;
    args.k_bgtd = slices.k_bgtd;
    args.v_bgtd = slices.v_bgtd;
    args.scale = spec_.scale;
    args.soft_cap = spec_.problem.soft_cap;
    args.mask = spec_.problem.mask;
    args.deterministic = spec_.problem.deterministic;
    args.tf32 = spec_.problem.tf32;
    args.products = products_.get();
    return args;
  }

  // In the dtype of L.
  static at::Tensor Sinks(const at::Tensor& stored) {
    return stored.to(ArithmeticDtype(stored.scalar_type()));
  }

  AttentionOut OutOf(absl::Span<const at::Tensor> results) const {
    AttentionOut out;
    out.o_bhsd = results[kO].transpose(1, 2);
    out.saved.assign(results.begin() + kO + 1,
                     results.begin() + kO + 1 + memory_.saved.size());
    if (memory_.lse.has_value()) out.lse_bhs = results.back();
    return out;
  }

  // The FLOPs of `products` matrix products over the query-key pairs that the
  // mask keeps.
  double Flops(int products) const {
    const AttentionProblem& p = spec_.problem;
    return products * 2.0 * static_cast<double>(p.b * p.h * p.d) *
           VisiblePairs(p);
  }

  const SelfAttentionSpec spec_;
  const AttentionMemory memory_;
  const std::shared_ptr<const ProductChoices> products_;  // may be null
};

}  // namespace

const AttentionProblem* AttentionProblemOf(const Op& op) {
  const auto* const attention = dynamic_cast<const SelfAttentionOp*>(&op);
  return attention == nullptr ? nullptr : &attention->problem();
}

double VisiblePairs(const AttentionProblem& problem) {
  return static_cast<double>(problem.s) * static_cast<double>(problem.t) *
         VisibleShare(problem);
}

Value SelfAttention(ProgramBuilder& b, Value qkv,
                    const SelfAttentionSpec& spec) {
  const AttentionProblem& p = spec.problem;
  TESSERA_CHECK(spec.backend != nullptr, "no backend");
  const TensorType type = b.type(qkv);
  const TensorType expected = {{p.b, p.s, p.h + 2 * p.g, p.d}, p.dtype};
  TESSERA_CHECK(type == expected, "qkv is ", ToString(type), ", not ",
                ToString(expected));
  std::vector<Value> operands = {qkv};
  TESSERA_CHECK(spec.documents.has_value() == p.documents, "documents");
  if (p.documents) {
    const TensorType documents = {{2, p.b, p.s}, at::kInt};
    TESSERA_CHECK(b.type(*spec.documents) == documents, "documents are ",
                  ToString(b.type(*spec.documents)));
    operands.push_back(*spec.documents);
  }
  TESSERA_CHECK(spec.sinks.has_value() == p.sinks, "sinks");
  if (p.sinks) {
    operands.push_back(b.Read(*spec.sinks, b.dtype(OpClass::kMasterWeights)));
    TESSERA_CHECK(b.type(operands.back()).shape == std::vector<int64_t>{p.h},
                  "sinks are ", ToString(b.type(operands.back())));
  }
  const AttentionMemory memory = spec.backend->Plan(p);
  std::vector<TensorType> results = {{{p.b, p.s, p.h, p.d}, type.dtype}};
  std::vector<std::string> names = {""};
  for (const TensorType& saved : memory.saved) {
    names.push_back(absl::StrCat("saved", results.size() - 1));
    results.push_back(saved);
  }
  if (memory.lse.has_value()) {
    names.push_back("lse");
    results.push_back(*memory.lse);
  }
  return b.Add(
      std::make_unique<SelfAttentionOp>(spec, memory, b.target().products),
      "attention", std::move(operands), std::move(results),
      std::move(names))[0];
}

}  // namespace tessera
