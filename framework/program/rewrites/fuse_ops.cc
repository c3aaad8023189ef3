#include "framework/program/rewrites/fuse_ops.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace tessera {

class ProgramFuser {
 public:
  explicit ProgramFuser(Program program)
      : program_(std::move(program)),
        readers_(program_.values_.size(), 0),
        gone_(program_.values_.size(), false) {
    for (const OpNode& node : program_.ops_) {
      for (const Value operand : node.operands) ++readers_[operand.index];
    }
    for (const Value output : program_.outputs_) ++readers_[output.index];
  }

  FusedProgram Fuse(WantsFusion wanted) && {
    std::vector<OpNode> ops = std::move(program_.ops_);
    std::vector<int> new_index;  // of ops, by their old index
    program_.ops_.clear();
    for (OpNode& node : ops) {
      new_index.push_back(static_cast<int>(program_.ops_.size()));
      if (program_.ops_.empty() || !FuseWithLast(node, wanted)) {
        program_.ops_.push_back(std::move(node));
      }
    }
    new_index.push_back(static_cast<int>(program_.ops_.size()));
    for (ProgramScope& scope : program_.scopes_) {
      scope.first_op = new_index[scope.first_op];
      scope.end_op = new_index[scope.end_op];
    }
    std::vector<Value> renumbered = Renumber();
    return {std::move(program_), std::move(renumbered)};
  }

 private:
  // Makes the last op and `reader` one, if that is possible and wanted.
  bool FuseWithLast(const OpNode& reader, WantsFusion wanted) {
    OpNode& producer = program_.ops_.back();
    for (size_t i = 0; i < reader.operands.size(); ++i) {
      if (!absl::c_linear_search(producer.results, reader.operands[i])) {
        continue;
      }
      FusedOp fused = reader.op->FuseWith(*producer.op, static_cast<int>(i));
      if (fused.op == nullptr || !wanted(fused.fusion, producer, reader)) {
        continue;
      }
      OpNode joined = {.name = JoinedName(producer.name, reader.name),
                       .scope = producer.scope,
                       .operands = producer.operands};
      std::vector<Value> dropped;
      const auto sort = [&](const OpNode& node, Positions remaining) {
        for (size_t r = 0; r < node.results.size(); ++r) {
          const bool remains = remaining.Has(static_cast<int>(r));
          (remains ? joined.results : dropped).push_back(node.results[r]);
        }
      };
      sort(producer, fused.of_producer);
      sort(reader, fused.of_reader);
      --readers_[reader.operands[i].index];
      const bool is_read = absl::c_any_of(
          dropped, [this](Value value) { return readers_[value.index] > 0; });
      if (is_read) {
        ++readers_[reader.operands[i].index];
        continue;
      }
      for (const Value value : dropped) gone_[value.index] = true;
      for (size_t j = 0; j < reader.operands.size(); ++j) {
        if (j != i) joined.operands.push_back(reader.operands[j]);
      }
      fused.op->SetTypes(TypesOf(joined.operands), TypesOf(joined.results));
      joined.op = std::move(fused.op);
      producer = std::move(joined);
      return true;
    }
    return false;
  }

  // "head/lm_head" and "cross_entropy": "head/lm_head+cross_entropy".
  static std::string JoinedName(const std::string& producer,
                                const std::string& reader) {
    return absl::StrCat(producer, "+", reader.substr(reader.rfind('/') + 1));
  }

  std::vector<TensorType> TypesOf(const std::vector<Value>& values) const {
    std::vector<TensorType> types;
    for (const Value value : values) types.push_back(program_.info(value).type);
    return types;
  }

  std::vector<Value> Renumber() {
    std::vector<Value> renumbered(program_.values_.size());
    std::vector<ValueInfo> remaining;
    for (size_t v = 0; v < program_.values_.size(); ++v) {
      if (gone_[v]) continue;
      renumbered[v] = {static_cast<int>(remaining.size())};
      remaining.push_back(std::move(program_.values_[v]));
    }
    program_.values_ = std::move(remaining);
    const auto update = [&](std::vector<Value>* values) {
      for (Value& value : *values) value = renumbered[value.index];
    };
    for (OpNode& node : program_.ops_) {
      update(&node.operands);
      update(&node.results);
    }
    update(&program_.outputs_);
    for (ProgramConstant& constant : program_.constants_) {
      constant.value = renumbered[constant.value.index];
    }
    return renumbered;
  }

  Program program_;
  std::vector<int> readers_;  // by value: ops and outputs
  std::vector<bool> gone_;    // by value
};

FusedProgram FuseOps(Program program, WantsFusion wanted) {
  return ProgramFuser(std::move(program)).Fuse(wanted);
}

}  // namespace tessera
