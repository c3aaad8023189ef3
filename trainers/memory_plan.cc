#include "trainers/memory_plan.h"

#include <algorithm>

namespace tessera {
namespace {

// Bytes of one block's halves, for all tokens of a micro-batch.
struct BlockBytes {
  int64_t input;      // the residual stream that enters a half
  int64_t attention;  // what else its attention half keeps
  int64_t ffn;        // what else its feed-forward half keeps
};

class Planner {
 public:
  explicit Planner(const MemoryPlanInput& input)
      : in_(input),
        m_(input.shape),
        tokens_(input.attention.b * input.attention.s),
        attention_(input.backend->Plan(input.attention)) {}

  MemoryReport Plan() const {
    const int64_t all = CountParameters(m_);
    MemoryReport report;
    report.parameters = all * Size(OpClass::kMasterWeights);
    if (Size(OpClass::kWeights) != Size(OpClass::kMasterWeights)) {
      report.shadow = all * Size(OpClass::kWeights);
    }
    report.gradients = all * Size(OpClass::kGradient);
    report.optimizer = 2 * all * Size(OpClass::kOptimizerState);
    report.activations = Activations();
    report.workspace = Workspace();
    return report;
  }

 private:
  int64_t Size(OpClass op) const {
    return static_cast<int64_t>(c10::elementSize((*in_.precision)[op]));
  }

  BlockBytes Block() const {
    const int64_t activation = Size(OpClass::kActivation);
    const int64_t norm =
        activation * m_.d_model + Size(OpClass::kNormStatistics);
    const int64_t qkv =
        Size(OpClass::kAttention) * m_.qkv_heads() * m_.head_dim();
    return {.input = tokens_ * Size(OpClass::kResidual) * m_.d_model,
            .attention = tokens_ * (norm + qkv) + attention_.saved_bytes,
            .ffn = tokens_ * (norm + 3 * activation * m_.d_ff)};
  }

  int64_t Activations() const {
    const BlockBytes block = Block();
    int64_t total = 0;
    int64_t recomputed = 0;  // the largest segment, alive once more
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      const bool applies = layer % in_.recompute.every() == 0;
      const auto policy =
          applies ? in_.recompute.policy() : RecomputeConfig::NONE;
      const bool whole = policy == RecomputeConfig::BLOCK;
      const bool drops_attention =
          whole || policy == RecomputeConfig::ATTENTION;
      const bool drops_ffn = whole || policy == RecomputeConfig::FFN;
      total += (whole ? 1 : 2) * block.input +
               (drops_attention ? 0 : block.attention) +
               (drops_ffn ? 0 : block.ffn);
      recomputed =
          std::max(recomputed, (whole ? block.input : 0) +
                                   (drops_attention ? block.attention : 0) +
                                   (drops_ffn ? block.ffn : 0));
    }
    return total + recomputed + Head();
  }

  // The final norm's input and result, and the logits.
  int64_t Head() const {
    return tokens_ * (Size(OpClass::kResidual) * m_.d_model +
                      Size(OpClass::kActivation) * m_.d_model +
                      Size(OpClass::kLogits) * m_.vocab);
  }

  int64_t Workspace() const {
    const int64_t activation = Size(OpClass::kActivation);
    const int64_t loss =
        tokens_ * m_.vocab * (Size(OpClass::kLogits) + Size(OpClass::kLoss));
    const int64_t ffn = tokens_ * 3 * activation * m_.d_ff;
    const int64_t attention =
        tokens_ * 2 * Size(OpClass::kAttention) * m_.qkv_heads() *
            m_.head_dim() +
        std::max(attention_.forward_bytes, attention_.backward_bytes);
    const int64_t stream = 2 * tokens_ * Size(OpClass::kResidual) * m_.d_model;
    return std::max({loss, ffn, attention}) + stream;
  }

  const MemoryPlanInput& in_;
  const ModelShape& m_;
  const int64_t tokens_;
  const AttentionMemory attention_;
};

}  // namespace

MemoryReport PlanMemory(const MemoryPlanInput& input) {
  return Planner(input).Plan();
}

}  // namespace tessera
