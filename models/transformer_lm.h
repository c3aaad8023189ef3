#ifndef MODELS_TRANSFORMER_LM_H_
#define MODELS_TRANSFORMER_LM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention_backends/attention_backend.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"
#include "framework/program/program.h"
#include "models/model_shape.h"

namespace tessera {

// A decoder-only transformer language model: token embedding, blocks, final
// RMSNorm, output projection (docs/design.md, decision 6).
//
// The functions below are the only description of the model. Everything else
// (parameters, their order, memory, FLOPs) is derived from the programs.

struct LmOptions {
  ModelShape shape;
  int64_t batch = 0;     // B
  int64_t sequence = 0;  // S <= shape.context
  const AttentionBackend* backend = nullptr;
  // AttentionProblemOf() these sizes. The backend supports it.
  AttentionProblem attention;
  TrainingObjective objective;  // of BuildLossProgram(); default: cross entropy
};

// The attention problem of a layer, for choosing the backend: of the first with
// a window, if there is one, because not every backend computes windows.
// Without documents.
AttentionProblem AttentionProblemOf(const ModelShape& shape, int64_t batch,
                                    int64_t sequence, bool needs_grad,
                                    const ProgramTarget& target);

// The parameter blocks of a model in the order in which its programs read them.
// `frozen` and `muon` are patterns of ProgramTarget. NotFound for one that
// matches no parameter, InvalidArgument if those of one list together match
// only part of a fused block.
absl::StatusOr<std::vector<ParameterBlockSpec>> LmParameters(
    const ModelShape& shape, const std::vector<std::string>& frozen,
    const std::vector<std::string>& muon = {});

// The sum of the next-token losses of one micro-batch, in nats. The objective
// changes only the loss op: programs with the same other options have the same
// values.
struct LossProgram {
  Program program;
  Value ids;      // [B, S], int64
  Value targets;  // [B, S], int64; see CrossEntropySum()
  Value loss;     // scalar
  // If the attention problem has documents: each token's position in its own,
  // [B, S], int64, and their bounds (AttentionArgs::documents).
  std::optional<Value> positions, documents;
};
absl::StatusOr<LossProgram> BuildLossProgram(const LmOptions& options,
                                             const ProgramTarget& target);

// What a NextTokenProgram does with the keys and values of its tokens
// (attention_backends/cached_attention.h).
enum class CacheUse {
  kNone,
  kFill,  // writes those of all its tokens
  // Computes one token, after those whose keys and values it reads. Uses no
  // attention backend.
  kExtend,
};

// Logits for the token after one position of each sequence.
struct NextTokenProgram {
  Program program;
  Value ids;  // [B, S], int64; under kExtend [B, 1]
  // Int64; later tokens have no effect. [1]; under kExtend [B, 1], all equal.
  Value position;
  Value logits;  // [B, 1, V], under the model's soft cap
  // By layer, unless kNone: CacheType() of S rows.
  std::vector<Value> caches;
};
absl::StatusOr<NextTokenProgram> BuildNextTokenProgram(
    const LmOptions& options, const ProgramTarget& target,
    CacheUse use = CacheUse::kNone);

}  // namespace tessera

#endif  // MODELS_TRANSFORMER_LM_H_
