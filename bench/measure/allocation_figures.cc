#include "bench/measure/allocation_figures.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/observe/block_path.h"
#include "framework/observe/format.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLargest = 10;
constexpr char kEmbedding[] = "token_embeddings";

double Mib(double bytes) { return bytes / kMebibyte; }

// The bytes of each tensor with a number for each pair of tokens: attention's
// scores, of which softmax makes weights in place. [B, H, T, T], or by key
// head, [B, G, H / G T, T].
std::set<int64_t> ScoreBytes(const RunPlan& plan) {
  const int64_t n = plan.shape.context;
  const int64_t h = plan.shape.heads, g = plan.shape.kv_heads;
  std::set<int64_t> bytes;
  for (const ValueInfo& value : plan.step->train.values) {
    const std::vector<int64_t>& shape = value.type.shape;
    if (shape.size() == 4 && (shape[1] == h || shape[1] == g) &&
        shape[1] * shape[2] == h * n && shape[3] == n) {
      bytes.insert(value.type.bytes());
    }
  }
  return bytes;
}

// The part of the model in which an allocation was made; empty for others than
// those that AllocationFigures() names. `from`: "forward/block_3/ffn/w13".
std::string PartOf(const LargeAllocation& allocation,
                   const std::set<int64_t>& score_bytes) {
  absl::string_view from = allocation.from;
  if (!absl::ConsumePrefix(&from, "forward/")) return "";
  if (from == kEmbedding) return "embedding";
  const std::vector<absl::string_view> path = absl::StrSplit(from, '/');
  const auto within = [&](absl::string_view name) {
    return absl::c_linear_search(path, name);
  };
  if (within("ln1") || within("ln2") || within("ln_final")) return "norm";
  if (path.back() == "add") return "residual";
  // "add+ln2" writes both the residual stream and its norm.
  if (absl::StartsWith(path.back(), "add+")) return "residual_and_norm";
  if (within("ffn")) return "ffn";
  if (within("head") || within("cross_entropy")) return "logits";
  if (within("scores")) return "scores";
  if (within("softmax")) return "softmax";
  if (within("qkv") || within("qk_norm") || within("rope")) {
    return "attention_in";
  }
  if (!within("attention")) return "";
  return score_bytes.contains(allocation.bytes) ? "scores" : "attention_out";
}

Json Largest(const MemoryRecord& record) {
  Json largest = Json::array();
  for (const LargeAllocation& allocation : record.largest) {
    const std::string from = FoldBlocks(allocation.from);
    const double mib = Mib(allocation.bytes);
    const auto same =
        std::find_if(largest.begin(), largest.end(), [&](const Json& other) {
          return other["from"] == from && other["mib"] == mib;
        });
    if (same != largest.end()) {
      (*same)["count"] = (*same)["count"].get<int>() + 1;
    } else if (largest.size() < kLargest) {
      largest.push_back(
          {{"mib", mib},
           {"count", 1},
           {"category", NameOf(allocation.category)},
           {"from", from},
           {"to", allocation.to.empty() ? "-" : FoldBlocks(allocation.to)},
           {"at_ms", allocation.at_ms},
           {"ms", allocation.ms}});
    }
  }
  return largest;
}

struct SavedBytes {
  int64_t measured = 0, planned = 0;
};

// Sums by op, with all blocks in one. An op outside of blocks has its path.
class SavedByOp {
 public:
  void AddMeasured(absl::string_view block, absl::string_view op,
                   int64_t bytes) {
    Of(block, op).measured += bytes;
  }
  void AddPlanned(absl::string_view path, int64_t bytes) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(path, absl::MaxSplits('/', 1));
    Of(sides.first, sides.second).planned += bytes;
  }

  Json ToJson(int64_t blocks) const {
    SavedBytes all, in_blocks;
    Json ops = Json::array();
    for (const auto& [name, op] : ops_) {
      all.measured += op.bytes.measured;
      all.planned += op.bytes.planned;
      if (op.in_block) {
        in_blocks.measured += op.bytes.measured;
        in_blocks.planned += op.bytes.planned;
      }
      const auto n = static_cast<double>(op.in_block ? blocks : 1);
      ops.push_back({{"op", name},
                     {"mib", Mib(op.bytes.measured / n)},
                     {"planned_mib", Mib(op.bytes.planned / n)}});
    }
    const auto n = static_cast<double>(blocks);
    return {{"mib", Mib(all.measured)},
            {"planned_mib", Mib(all.planned)},
            {"block_mib", Mib(in_blocks.measured / n)},
            {"planned_block_mib", Mib(in_blocks.planned / n)},
            {"ops", std::move(ops)}};
  }

 private:
  struct Op {
    bool in_block = false;
    SavedBytes bytes;
  };

  SavedBytes& Of(absl::string_view block, absl::string_view op) {
    const bool in_block = IsBlock(block);
    // A block with one op has the op's name.
    const std::string name = in_block ? std::string(op)
                             : op == block || op.empty()
                                 ? std::string(block)
                                 : absl::StrCat(block, "/", op);
    Op& found = ops_[name];
    found.in_block = in_block;
    return found.bytes;
  }

  std::map<std::string, Op> ops_;
};

}  // namespace

Json AllocationFigures(const MemoryRecord& record, const RunPlan& plan,
                       int64_t moment_bytes) {
  const std::set<int64_t> score_bytes = ScoreBytes(plan);
  std::map<std::string, int64_t> parts;
  for (const LargeAllocation& allocation : record.largest) {
    const bool is_gradient =
        allocation.category == MemoryCategory::kActivationGradients;
    const std::string part = is_gradient ? NameOf(allocation.category)
                                         : PartOf(allocation, score_bytes);
    if (part.empty()) continue;
    int64_t& bytes = parts[part];
    bytes = std::max(bytes, allocation.bytes);
  }
  for (const auto category :
       {MemoryCategory::kParameters, MemoryCategory::kShadow,
        MemoryCategory::kGradients}) {
    const int64_t bytes = record.end.bytes[static_cast<size_t>(category)];
    if (bytes > 0) parts[NameOf(category)] = bytes;
  }
  if (moment_bytes > 0) {
    parts[NameOf(MemoryCategory::kOptimizer)] = moment_bytes;
  }
  Json figures = {{"largest", Largest(record)}};
  for (const auto& [part, bytes] : parts) figures["parts"][part] = Mib(bytes);
  return figures;
}

Json SavedFigures(const MemoryRecord& record, const RunPlan& plan) {
  SavedByOp saved;
  for (const BlockBytes& block : record.saved) {
    for (const BlockBytes::OpBytes& op : block.ops) {
      saved.AddMeasured(block.block, op.op, op.bytes);
    }
  }
  const Schedule& schedule = plan.step->train;
  const Lifetimes& lifetimes = plan.step->train_lifetimes;
  for (const Buffer& buffer : lifetimes.buffers) {
    // The loss is kept for the caller, not for the backward pass.
    if (!IsKept(schedule, buffer) ||
        // Those that were measured, at the end of the last forward pass.
        schedule.runs[buffer.first].micro_batch + 1 !=
            schedule.listed_micro_batches() ||
        buffer.storage == Storage::kGradients ||
        absl::c_linear_search(schedule.outputs, buffer.values.back())) {
      continue;
    }
    const int op = schedule.runs[buffer.first].op;
    saved.AddPlanned(schedule.program->ops()[op].name, buffer.bytes);
  }
  return saved.ToJson(plan.shape.layers);
}

Json ResidualFigures(const MemoryRecord& record, const RunPlan& plan) {
  const double formula =
      static_cast<double>(plan.micro_batch * plan.shape.context *
                          plan.shape.d_model) *
      c10::elementSize(plan.precision[OpClass::kResidual]);
  Json figures = {{"formula_mib", Mib(formula)}};
  for (const LargeAllocation& allocation : record.largest) {
    if (allocation.from != absl::StrCat("forward/", kEmbedding)) continue;
    figures["mib"] = Mib(allocation.bytes);
    break;
  }
  return figures;
}

}  // namespace tessera
