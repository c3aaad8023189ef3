#include "attention_backends/cached_attention.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "attention_backends/decode_attention.h"
#include "framework/base/check.h"
#include "framework/cuda/cuda_build.h"
#include "framework/ops/forward_only_op.h"
#include "framework/ops/rope/rope.h"
#include "framework/program/value.h"

namespace tessera {
namespace {

// The keys and values of qkv as rows of a cache: [S, 2, B G, D].
at::Tensor RowsOf(const at::Tensor& qkv, const AttentionProblem& p) {
  const int64_t b = qkv.size(0), s = qkv.size(1);
  return qkv.narrow(2, p.h, 2 * p.g)
      .reshape({b, s, 2, p.g, p.d})
      .permute({1, 2, 0, 3, 4})
      .reshape({s, 2, b * p.g, p.d});
}

class FillCacheOp : public ForwardOnlyOp {
 public:
  explicit FillCacheOp(const AttentionProblem& problem) : problem_(problem) {}

  absl::string_view kind() const override { return "fill_cache"; }

  void Forward(const ForwardArgs& args) const override {
    const at::Tensor& qkv = args.operands[0];
    args.operands[1].narrow(0, 0, qkv.size(1)).copy_(RowsOf(qkv, problem_));
    at::Tensor same = args.results[0];
    if (!same.is_alias_of(qkv)) same.copy_(qkv);
  }
  std::optional<int> ResultMayOverwrite(int) const override { return 0; }

  // Keys and values are read and written.
  Cost ForwardCost() const override {
    const TensorType& qkv = operand(0);
    return {.bytes = 2 * qkv.bytes() / qkv.shape[2] * 2 * problem_.g};
  }

 private:
  const AttentionProblem problem_;
};

class CachedAttentionOp : public ForwardOnlyOp {
 public:
  // `rope`: if set, RoPE is fused, and its four operands replace qkv.
  CachedAttentionOp(const SelfAttentionSpec& spec, int splits,
                    std::optional<RopeLayout> rope)
      : spec_(spec), splits_(splits), rope_(rope) {}

  absl::string_view kind() const override { return "cached_attention"; }
  std::string kernel() const override {
    return has_kernel() ? "decode_attention" : "ATen";
  }

  void Forward(const ForwardArgs& args) const override {
    const DecodeAttentionTensors tensors = TensorsOf(args.operands);
    if constexpr (kCudaBuild) {
      if (has_kernel()) {
        return cuda::DecodeAttention(spec_, splits_, tensors, args.results[0]);
      }
    }
    const AttentionProblem& p = spec_.problem;
    const at::Tensor &qkv = tensors.qkv, &cache = tensors.cache;
    const at::Tensor position = tensors.position.select(0, 0);  // [1]
    cache.index_copy_(0, position, RowsOf(qkv, p));
    const at::Tensor q =
        qkv.narrow(2, 0, p.h).reshape({p.b * p.g, p.h / p.g, p.d});
    const at::Tensor keys = cache.select(1, 0).permute({1, 2, 0});
    const at::Tensor values = cache.select(1, 1).permute({1, 0, 2});
    at::Tensor scores = at::bmm(q, keys).to(softmax_dtype()).mul_(spec_.scale);
    ApplySoftCap(p.soft_cap, scores);
    scores.masked_fill_(Hidden(position),
                        -std::numeric_limits<double>::infinity());
    const at::Tensor weights = Softmax(scores, tensors.sinks);
    args.results[0].copy_(at::bmm(weights.to(qkv.scalar_type()), values)
                              .view({p.b, 1, p.h, p.d}));
  }

  int64_t ForwardWorkspaceBytes() const override {
    if (has_kernel()) return DecodeAttentionBytes(spec_.problem, splits_);
    // Scores, their softmax, and one of both in the dtype of the products; with
    // sinks, another copy of the scores beside them.
    const AttentionProblem& p = spec_.problem;
    const TensorType scores = {{p.b, p.h, p.t + (p.sinks ? 1 : 0)},
                               softmax_dtype()};
    return (p.sinks ? 4 : 3) * scores.bytes();
  }
  Cost ForwardCost() const override {
    const double flops =
        4.0 * static_cast<double>(operand(cache()).numel() / 2 *
                                  (spec_.problem.h / spec_.problem.g));
    // It reads only one row of RoPE's tables.
    const int64_t tables =
        rope_.has_value() ? operand(1).bytes() + operand(2).bytes() : 0;
    return {.flops = flops,
            .bytes = ForwardBytes() - tables,
            .product_flops = flops,
            .products = 2};
  }

  FusedOp FuseWith(const Op& producer, int position) const override {
    const AttentionProblem& p = spec_.problem;
    const std::optional<Rotation> rotation = RotationOf(producer);
    const bool fuses = rotation.has_value() && position == 0 && has_kernel() &&
                       producer.num_operands() == kRopeOperands &&
                       rotation->rotated_heads == p.h + p.g;
    if (!fuses || rope_.has_value()) return {};
    return {.op = std::make_unique<CachedAttentionOp>(spec_, splits_,
                                                      rotation->layout),
            .fusion = Fusion::kNextToken,
            .of_reader = {0}};
  }

 private:
  static constexpr int kRopeOperands = 4;  // qkv, cos, sin, positions

  bool has_kernel() const { return splits_ > 0; }
  int cache() const { return rope_.has_value() ? kRopeOperands : 1; }

  DecodeAttentionTensors TensorsOf(
      absl::Span<const at::Tensor> operands) const {
    DecodeAttentionTensors tensors = {.qkv = operands[0],
                                      .cache = operands[cache()],
                                      .position = operands[cache() + 1]};
    if (spec_.problem.sinks) tensors.sinks = operands[cache() + 2];
    if (rope_.has_value()) {
      tensors.rope = {.cos = operands[1],
                      .sin = operands[2],
                      .layout = *rope_,
                      .token_positions = operands[3]};
    }
    return tensors;
  }

  at::ScalarType softmax_dtype() const {
    return spec_.problem.dtype == at::kDouble ? at::kDouble : at::kFloat;
  }

  // [T]: whether the token at `position` does not see a row.
  at::Tensor Hidden(const at::Tensor& position) const {
    const at::Tensor rows = at::arange(spec_.problem.t, position.options());
    at::Tensor hidden = rows > position;
    if (const int64_t before = spec_.problem.mask.before; before != kAllKeys) {
      hidden.logical_or_(rows < position - before);
    }
    return hidden;
  }

  // `sinks`, [H], take part like the score of a key without a value.
  at::Tensor Softmax(const at::Tensor& scores, const at::Tensor& sinks) const {
    if (!sinks.defined()) return at::softmax(scores, -1);
    const int64_t b = spec_.problem.b;
    const at::Tensor sink = sinks.to(scores.scalar_type())
                                .view({1, spec_.problem.g, -1})
                                .expand({b, -1, -1})
                                .reshape({scores.size(0), scores.size(1), 1});
    return at::softmax(at::cat({scores, sink}, -1), -1)
        .narrow(-1, 0, scores.size(2));
  }

  const SelfAttentionSpec spec_;
  const int splits_;  // of the kernel; 0: ATen computes
  const std::optional<RopeLayout> rope_;
};

void CheckCache(ProgramBuilder& b, Value cache, const AttentionProblem& p) {
  const TensorType &type = b.type(cache),
                   expected = CacheType(type.shape[0], p);
  TESSERA_CHECK(type == expected, "the cache is ", ToString(type), ", not ",
                ToString(expected));
}

}  // namespace

TensorType CacheType(int64_t rows, const AttentionProblem& problem) {
  return {{rows, 2, problem.b * problem.g, problem.d}, problem.dtype};
}

Value FillCache(ProgramBuilder& b, Value qkv, Value cache,
                const AttentionProblem& problem) {
  CheckCache(b, cache, problem);
  return b.Add(std::make_unique<FillCacheOp>(problem), "fill_cache",
               {qkv, cache}, {b.type(qkv)})[0];
}

Value CachedAttention(ProgramBuilder& b, Value qkv, Value cache, Value position,
                      const SelfAttentionSpec& spec) {
  const AttentionProblem& p = spec.problem;
  CheckCache(b, cache, p);
  TESSERA_CHECK(p.s == 1 && p.t == b.type(cache).shape[0], "S ", p.s, ", T ",
                p.t);
  std::vector<Value> operands = {qkv, cache, position};
  if (p.sinks) {
    operands.push_back(b.Read(*spec.sinks, b.dtype(OpClass::kMasterWeights)));
  }
  const int splits =
      DecodeAttentionSplits(p, b.target().device.multiprocessors);
  return b.Add(std::make_unique<CachedAttentionOp>(spec, splits, std::nullopt),
               "attention", std::move(operands),
               {{{p.b, 1, p.h, p.d}, p.dtype}})[0];
}

}  // namespace tessera
