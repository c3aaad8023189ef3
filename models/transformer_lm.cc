#include "models/transformer_lm.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention_backends/cached_attention.h"
#include "attention_backends/naive/naive_backend.h"
#include "framework/base/status_macros.h"
#include "framework/ops/cross_entropy/cross_entropy.h"
#include "framework/ops/embedding/embedding.h"
#include "framework/ops/linear/linear.h"
#include "framework/ops/rms_norm/rms_norm.h"
#include "framework/ops/select_token/select_token.h"
#include "framework/ops/soft_cap/soft_cap.h"
#include "models/transformer_block.h"

namespace tessera {
namespace {

Weight Parameter(ProgramBuilder& b, const std::string& name,
                 std::vector<int64_t> shape, Init init) {
  return b.Parameter(
      {.name = name, .members = {{name, std::move(shape), init}}});
}

// The residual stream after the last block, and the token embedding.
struct Trunk {
  Value x_bsc;
  Weight embedding;
};

// Inputs beside the token ids.
struct TrunkInputs {
  // Present if sequences are packed with documents.
  std::optional<Value> positions, documents;
  // As in BlockOptions.
  std::vector<Value> caches;
  std::optional<Value> position;
};

Trunk Blocks(ProgramBuilder& b, Value ids, const TrunkInputs& inputs,
             const LmOptions& options) {
  const ModelShape& m = options.shape;
  const Weight embedding =
      Parameter(b, "token_embeddings.weight", {m.vocab, m.d_model},
                m.tied_head ? Init::kTiedEmbedding : Init::kEmbedding);
  BlockOptions block = {
      .shape = m,
      .angles = MakeRopeAngles(b, options.sequence, m.head_dim(), m.rope),
      .attention = {.scale = 1 / std::sqrt(static_cast<double>(m.head_dim())),
                    .backend = options.backend,
                    .problem = options.attention,
                    .documents = inputs.documents},
      .caches = inputs.caches,
      .position = inputs.position};
  block.angles.positions =
      inputs.position.has_value() ? inputs.position : inputs.positions;
  Value x_bsc = Embedding(b, ids, embedding);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    x_bsc = TransformerBlock(b, x_bsc, layer, block);
  }
  return {x_bsc, embedding};
}

// Before the soft cap.
Value Logits(ProgramBuilder& b, Value x_bsc, Weight embedding,
             const ModelShape& m) {
  const ProgramBuilder::Scope scope(b, "head");
  const Weight norm = Parameter(b, "ln_final.weight", {m.d_model}, Init::kOnes);
  const Value y = RmsNorm(b, x_bsc, norm, m.norm_eps);
  const Weight head =
      m.tied_head
          ? embedding
          : Parameter(b, "lm_head.weight", {m.vocab, m.d_model}, Init::kLinear);
  return Linear(b, y, head, {.dtype = b.dtype(OpClass::kLogits)});
}

TensorType Ids(const LmOptions& options) {
  return {{options.batch, options.sequence}, at::kLong};
}

std::vector<Value> Caches(ProgramBuilder& b, const LmOptions& options) {
  std::vector<Value> caches;
  for (int64_t layer = 0; layer < options.shape.layers; ++layer) {
    caches.push_back(b.Input(absl::StrCat("cache_", layer),
                             CacheType(options.sequence, options.attention)));
  }
  return caches;
}

}  // namespace

AttentionProblem AttentionProblemOf(const ModelShape& shape, int64_t batch,
                                    int64_t sequence, bool needs_grad,
                                    const ProgramTarget& target) {
  MaskSpec mask = MaskSpec::Causal();
  for (int64_t layer = 0; layer < shape.layers && !mask.is_window(); ++layer) {
    mask = LayerMask(shape, layer, sequence);
  }
  return {.b = batch,
          .s = sequence,
          .t = sequence,
          .h = shape.heads,
          .g = shape.kv_heads,
          .d = shape.head_dim(),
          .dtype = target.precision[OpClass::kAttention],
          .tf32 = target.precision.allows_tf32(),
          .softmax = target.precision[OpClass::kSoftmax],
          .mask = mask,
          .soft_cap = shape.attention_soft_cap,
          .sinks = shape.attention_sinks,
          .needs_grad = needs_grad,
          .deterministic = target.deterministic,
          .cuda = target.device.is_cuda(),
          .compute_capability = target.device.compute_capability};
}

absl::StatusOr<std::vector<ParameterBlockSpec>> LmParameters(
    const ModelShape& shape, const std::vector<std::string>& frozen,
    const std::vector<std::string>& muon) {
  // The parameters are the same for every batch, backend and dtype.
  const NaiveBackend backend;
  const ProgramTarget target = {
      .precision = PrecisionPolicy::Uniform(at::kFloat),
      .frozen = frozen,
      .muon = muon};
  ASSIGN_OR_RETURN(
      LossProgram loss,
      BuildLossProgram({.shape = shape,
                        .batch = 1,
                        .sequence = 1,
                        .backend = &backend,
                        .attention = AttentionProblemOf(
                            shape, 1, 1, /*needs_grad=*/true, target)},
                       target));
  return loss.program.parameters();
}

absl::StatusOr<LossProgram> BuildLossProgram(const LmOptions& options,
                                             const ProgramTarget& target) {
  ProgramBuilder b(target);
  const Value ids = b.Input("ids", Ids(options));
  const Value targets = b.Input("targets", Ids(options));
  TrunkInputs inputs;
  if (options.attention.documents) {
    inputs.positions = b.Input("positions", Ids(options));
    inputs.documents =
        b.Input("documents", {{2, options.batch, options.sequence}, at::kInt});
  }
  const Trunk trunk = Blocks(b, ids, inputs, options);
  const Value logits = Logits(b, trunk.x_bsc, trunk.embedding, options.shape);
  const Value loss = CrossEntropySum(b, logits, targets,
                                     {.soft_cap = options.shape.logit_soft_cap,
                                      .objective = options.objective});
  b.Output(loss);
  ASSIGN_OR_RETURN(Program program, std::move(b).Build());
  return LossProgram{std::move(program), ids, targets, loss, inputs.positions,
                     inputs.documents};
}

absl::StatusOr<NextTokenProgram> BuildNextTokenProgram(
    const LmOptions& options, const ProgramTarget& target, CacheUse use) {
  const bool extends = use == CacheUse::kExtend;
  const TensorType one = {{options.batch, 1}, at::kLong};
  ProgramTarget forward = target;
  forward.forward_only = true;
  ProgramBuilder b(forward);
  const Value ids = b.Input("ids", extends ? one : Ids(options));
  const Value position =
      b.Input("position", extends ? one : TensorType{{1}, at::kLong});
  TrunkInputs inputs;
  if (use != CacheUse::kNone) inputs.caches = Caches(b, options);
  LmOptions computed = options;
  if (extends) {
    inputs.position = position;
    computed.attention.s = 1;
  }
  const Trunk trunk = Blocks(b, ids, inputs, computed);
  const Value last =
      extends ? trunk.x_bsc : SelectToken(b, trunk.x_bsc, position);
  Value logits = Logits(b, last, trunk.embedding, options.shape);
  if (const float cap = options.shape.logit_soft_cap; cap != 0) {
    logits = SoftCap(b, logits, cap);
  }
  b.Output(logits);
  ASSIGN_OR_RETURN(Program program, std::move(b).Build());
  return NextTokenProgram{std::move(program), ids, position, logits,
                          std::move(inputs.caches)};
}

}  // namespace tessera
