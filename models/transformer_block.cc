#include "models/transformer_block.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/cached_attention.h"
#include "framework/ops/linear/linear.h"
#include "framework/ops/qk_norm/qk_norm.h"
#include "framework/ops/relu_squared/relu_squared.h"
#include "framework/ops/residual/residual.h"
#include "framework/ops/rms_norm/rms_norm.h"
#include "framework/ops/swiglu/swiglu.h"

namespace tessera {
namespace {

std::string LayerName(int64_t layer, absl::string_view part) {
  return absl::StrCat("layers.", layer, ".", part);
}

Weight Vector(ProgramBuilder& b, int64_t layer, absl::string_view part,
              int64_t width, Init init) {
  const std::string name = LayerName(layer, part);
  return b.Parameter({.name = name, .members = {{name, {width}, init}}});
}

Weight Gain(ProgramBuilder& b, int64_t layer, absl::string_view part,
            int64_t width) {
  return Vector(b, layer, part, width, Init::kOnes);
}

Weight Matrix(ProgramBuilder& b, int64_t layer, absl::string_view part,
              int64_t out, int64_t in) {
  const std::string name = LayerName(layer, part);
  return b.Parameter(
      {.name = name, .members = {{name, {out, in}, Init::kLinear}}});
}

// The stacked weights of the linear layers `parts`, each [out, in].
Weight Stacked(ProgramBuilder& b, int64_t layer, absl::string_view name,
               int64_t in,
               std::vector<std::pair<absl::string_view, int64_t>> parts) {
  ParameterBlockSpec block{.name = LayerName(layer, name)};
  for (const auto& [part, out] : parts) {
    block.members.push_back({LayerName(layer, part), {out, in}, Init::kLinear});
  }
  return b.Parameter(std::move(block));
}

// Queries, keys and values of y, before RoPE: [B, S, H + 2G, D].
Value Qkv(ProgramBuilder& b, Value y_bsc, int64_t layer, const ModelShape& m) {
  const int64_t queries = m.heads * m.head_dim();
  const int64_t keys = m.kv_heads * m.head_dim();
  const Weight weight = Stacked(b, layer, "attn.qkv", m.d_model,
                                {{"attn.q_proj.weight", queries},
                                 {"attn.k_proj.weight", keys},
                                 {"attn.v_proj.weight", keys}});
  const Value qkv =
      Linear(b, y_bsc, weight,
             {.dtype = b.dtype(OpClass::kAttention), .heads = m.qkv_heads()});
  if (m.qk_norm == QkNormForm::kNone) return qkv;
  const bool by_head = m.qk_norm == QkNormForm::kHead;
  const Weight query_gain =
      Gain(b, layer, "attn.q_norm.weight", by_head ? m.head_dim() : queries);
  const Weight key_gain =
      Gain(b, layer, "attn.k_norm.weight", by_head ? m.head_dim() : keys);
  return QkNorm(b, qkv, {query_gain, key_gain}, m.kv_heads, m.norm_eps);
}

// Softmax attention of rotated queries and keys.
Value Attend(ProgramBuilder& b, Value rotated, int64_t layer,
             const BlockOptions& options) {
  const ModelShape& m = options.shape;
  SelfAttentionSpec attention = options.attention;
  attention.problem.mask = LayerMask(m, layer, attention.problem.t);
  if (m.attention_sinks) {
    attention.sinks = Vector(b, layer, "attn.sinks", m.heads, Init::kZeros);
  }
  if (options.caches.empty()) return SelfAttention(b, rotated, attention);
  const Value cache = options.caches[layer];
  if (options.position.has_value()) {
    return CachedAttention(b, rotated, cache, *options.position, attention);
  }
  return SelfAttention(b, FillCache(b, rotated, cache, attention.problem),
                       attention);
}

// [B, S, C], as the result of FeedForward().
Value Attention(ProgramBuilder& b, Value x_bsc, int64_t layer,
                const BlockOptions& options) {
  const ModelShape& m = options.shape;
  const Value rotated =
      Rope(b, Qkv(b, x_bsc, layer, m), options.angles, m.heads + m.kv_heads);
  const Value o = Attend(b, rotated, layer, options);
  const Weight output_proj = Matrix(b, layer, "attn.output_proj.weight",
                                    m.d_model, m.heads * m.head_dim());
  return Linear(b, o, output_proj, {.from_heads = true});
}

// The feed-forward up to its activation: [B, S, F].
Value Hidden(ProgramBuilder& b, Value y_bsc, int64_t layer,
             const ModelShape& m) {
  if (m.relu_squared) {
    const Weight w1 = Matrix(b, layer, "ffn.w1.weight", m.d_ff, m.d_model);
    return ReluSquared(b, Linear(b, y_bsc, w1));
  }
  const Weight w13 =
      Stacked(b, layer, "ffn.w13", m.d_model,
              {{"ffn.w1.weight", m.d_ff}, {"ffn.w3.weight", m.d_ff}});
  return SwiGlu(b, Linear(b, y_bsc, w13));
}

Value FeedForward(ProgramBuilder& b, Value x_bsc, int64_t layer,
                  const BlockOptions& options) {
  const ModelShape& m = options.shape;
  const Value h = Hidden(b, x_bsc, layer, m);
  const Weight w2 = Matrix(b, layer, "ffn.w2.weight", m.d_model, m.d_ff);
  return Linear(b, h, w2);
}

// A half of the block: x + branch(x), with a norm before or after `branch`.
struct Half {
  absl::string_view scope, gain;
  Value (*branch)(ProgramBuilder&, Value, int64_t, const BlockOptions&);
};
constexpr Half kHalves[] = {{"attention", "ln1.weight", Attention},
                            {"ffn", "ln2.weight", FeedForward}};

Value AddHalf(ProgramBuilder& b, Value x_bsc, int64_t layer, const Half& half,
              const BlockOptions& options) {
  const ProgramBuilder::Scope scope(b, half.scope);
  const ModelShape& m = options.shape;
  const auto norm = [&](Value x) {
    const Weight gain = Gain(b, layer, half.gain, m.d_model);
    return RmsNorm(b, x, gain, m.norm_eps);
  };
  const auto branch = [&](Value x) {
    return half.branch(b, x, layer, options);
  };
  const bool before = m.norm_placement == NormPlacement::kBefore;
  return AddResidual(b, x_bsc,
                     before ? branch(norm(x_bsc)) : norm(branch(x_bsc)));
}

}  // namespace

MaskSpec LayerMask(const ModelShape& shape, int64_t layer, int64_t sequence) {
  const int64_t window = shape.window(layer);
  if (window == 0) return MaskSpec::Causal();
  return WithoutRedundantLimits(MaskSpec::Window(window), sequence, sequence);
}

Value TransformerBlock(ProgramBuilder& b, Value x_bsc, int64_t layer,
                       const BlockOptions& options) {
  const ProgramBuilder::Scope scope(b, absl::StrCat("block_", layer));
  for (const Half& half : kHalves) {
    x_bsc = AddHalf(b, x_bsc, layer, half, options);
  }
  return x_bsc;
}

}  // namespace tessera
