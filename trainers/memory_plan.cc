#include "trainers/memory_plan.h"

#include <algorithm>

#include "framework/params/activation_arena.h"

namespace tessera {
namespace {

// Goes through the forward pass as the ops do and sums the bytes that it keeps
// outside the gradient buffer.
class ForwardWalk {
 public:
  // `lent`: activations lie in the gradient buffer where they fit, from the
  // end of its first `reserved` elements on.
  ForwardWalk(absl::Span<const ParameterBlockSpec> parameters, bool lent,
              int64_t gradient_size, int64_t reserved)
      : parameters_(parameters),
        lent_(lent),
        gradient_size_(gradient_size),
        cursor_(reserved * gradient_size) {
    while (first_trained_ < parameters.size() &&
           !parameters[first_trained_].trainable) {
      ++first_trained_;
    }
  }

  // The next one in execution order.
  void ReachParameter() {
    const ParameterBlockSpec& parameter = parameters_[next_++];
    if (!parameter.trainable) return;  // behind the others, without a gradient
    gradients_ += AlignUp(CountParameters(parameter));
    cursor_.Reach(gradients_ * gradient_size_);
  }
  // Whether backward comes to what runs now, or to what reads its result.
  bool differentiates() const {
    return first_trained_ < parameters_.size() && next_ + 1 >= first_trained_;
  }
  void Keep(int64_t bytes) {
    if (!differentiates()) return;
    if (!lent_ || !cursor_.Take(bytes).has_value()) outside_ += bytes;
  }
  void KeepOutside(int64_t bytes) {
    if (differentiates()) outside_ += bytes;
  }

  int64_t outside() const { return outside_; }

 private:
  const absl::Span<const ParameterBlockSpec> parameters_;
  const bool lent_;
  const int64_t gradient_size_;
  ArenaCursor cursor_;
  size_t first_trained_ = 0, next_ = 0;  // of parameters_
  int64_t gradients_ = 0;                // elements, aligned
  int64_t outside_ = 0;                  // bytes
};

class Planner {
 public:
  explicit Planner(const MemoryPlanInput& input)
      : in_(input),
        m_(input.shape),
        tokens_(input.attention.b * input.attention.s),
        attention_(input.backend->Plan(input.attention)),
        residual_(tokens_ * Size(OpClass::kResidual) * m_.d_model),
        norm_(tokens_ * Size(OpClass::kActivation) * m_.d_model),
        statistics_(tokens_ * Size(OpClass::kNormStatistics)),
        qkv_(tokens_ * Size(OpClass::kAttention) * m_.qkv_heads() *
             m_.head_dim()),
        hidden_(tokens_ * Size(OpClass::kActivation) * m_.d_ff) {}

  MemoryReport Plan() const {
    int64_t all = 0, trained = 0;
    for (const ParameterBlockSpec& block : in_.parameters) {
      const int64_t count = CountParameters(block);
      all += count;
      if (block.trainable) trained += count;
    }
    MemoryReport report;
    report.parameters = all * Size(OpClass::kMasterWeights);
    if (Size(OpClass::kWeights) != Size(OpClass::kMasterWeights)) {
      report.shadow = all * Size(OpClass::kWeights);
    }
    report.gradients = trained * Size(OpClass::kGradient);
    report.optimizer = 2 * trained * Size(OpClass::kOptimizerState);
    report.activations = Activations();
    report.workspace = Workspace();
    return report;
  }

 private:
  int64_t Size(OpClass op) const {
    return static_cast<int64_t>(c10::elementSize((*in_.precision)[op]));
  }

  RecomputeConfig::Policy PolicyOf(int64_t layer) const {
    return layer % in_.recompute.every() == 0 ? in_.recompute.policy()
                                              : RecomputeConfig::NONE;
  }

  int64_t Activations() const {
    const ParameterBlockSpec& embedding = in_.parameters.front();
    ForwardWalk walk(
        in_.parameters, in_.micro_batches == 1, Size(OpClass::kGradient),
        m_.tied_head && embedding.trainable ? CountParameters(embedding) : 0);
    walk.ReachParameter();
    walk.Keep(residual_);
    int64_t recomputed = 0;  // the largest segment, alive once more
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      const auto policy = PolicyOf(layer);
      const bool whole = policy == RecomputeConfig::BLOCK;
      const bool drops_attention =
          whole || policy == RecomputeConfig::ATTENTION;
      const bool drops_ffn = whole || policy == RecomputeConfig::FFN;
      AttentionHalf(drops_attention, &walk);
      if (drops_attention && !whole) walk.KeepOutside(residual_);
      FeedForwardHalf(drops_ffn, &walk);
      if (drops_ffn) walk.KeepOutside(residual_);
      if (!walk.differentiates()) continue;
      recomputed =
          std::max(recomputed, (whole ? residual_ : 0) +
                                   (drops_attention ? Attention() : 0) +
                                   (drops_ffn ? FeedForward() : 0));
    }
    walk.Keep(norm_);
    walk.ReachParameter();
    walk.Keep(tokens_ * Size(OpClass::kLogits) * m_.vocab);
    return walk.outside() + recomputed;
  }

  // The sums of what the halves below keep, their results apart.
  int64_t Attention() const {
    return norm_ + statistics_ + qkv_ + attention_.saved_bytes;
  }
  int64_t FeedForward() const { return norm_ + statistics_ + 3 * hidden_; }

  void AttentionHalf(bool dropped, ForwardWalk* walk) const {
    if (!dropped) {
      walk->KeepOutside(statistics_);
      walk->Keep(norm_);
    }
    walk->ReachParameter();
    if (!dropped) walk->Keep(qkv_);
    walk->ReachParameter();
    if (!dropped) walk->Keep(attention_.saved_bytes);
    walk->ReachParameter();
    if (!dropped) walk->Keep(residual_);
  }

  void FeedForwardHalf(bool dropped, ForwardWalk* walk) const {
    if (!dropped) {
      walk->KeepOutside(statistics_);
      walk->Keep(norm_);
    }
    walk->ReachParameter();
    if (!dropped) walk->Keep(2 * hidden_);
    walk->ReachParameter();
    if (!dropped) walk->Keep(hidden_);
    walk->ReachParameter();
    if (!dropped) walk->Keep(residual_);
  }

  int64_t Workspace() const {
    const int64_t rows = in_.attention.needs_grad ? tokens_ : 1;
    const int64_t loss =
        rows * m_.vocab * (Size(OpClass::kLogits) + Size(OpClass::kLoss));
    const int64_t attention = 2 * qkv_ + std::max(attention_.forward_bytes,
                                                  attention_.backward_bytes);
    return std::max({loss, 3 * hidden_, attention}) + 2 * residual_;
  }

  const MemoryPlanInput& in_;
  const ModelShape& m_;
  const int64_t tokens_;
  const AttentionMemory attention_;
  // Bytes of single results, for all tokens of a micro-batch.
  const int64_t residual_, norm_, statistics_, qkv_, hidden_;
};

}  // namespace

MemoryReport PlanMemory(const MemoryPlanInput& input) {
  return Planner(input).Plan();
}

}  // namespace tessera
