#include "framework/program/program.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "framework/base/check.h"
#include "framework/base/name_pattern.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

bool MatchesAny(absl::Span<const std::string> patterns,
                const ParameterSpec& parameter) {
  return absl::c_any_of(patterns, [&](const std::string& pattern) {
    return NameMatches(pattern, parameter.name);
  });
}

bool MatchesAny(absl::Span<const std::string> patterns,
                const ParameterBlockSpec& block) {
  return absl::c_any_of(block.members, [&](const ParameterSpec& member) {
    return MatchesAny(patterns, member);
  });
}

// Whether Muon can update a block.
bool IsTrainedMatrix(const ParameterBlockSpec& block) {
  return block.trainable && block.members.front().shape.size() == 2;
}

// An error if the patterns of `field` together match only part of a block.
// `advice` says what to do with its members instead.
absl::Status CheckMatchesWhole(const ParameterBlockSpec& block,
                               absl::string_view field,
                               absl::Span<const std::string> patterns,
                               absl::string_view advice) {
  std::vector<absl::string_view> matched, others;
  for (const ParameterSpec& member : block.members) {
    (MatchesAny(patterns, member) ? matched : others).push_back(member.name);
  }
  if (matched.empty() || others.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " matches only part of ", block.name,
      ", whose members are one fused matrix: ", absl::StrJoin(matched, ", "),
      ", but not ", absl::StrJoin(others, ", "), "; ", advice));
}

}  // namespace

std::string Program::ScopePath(int scope) const {
  std::string path;
  for (; scope > 0; scope = scopes_[scope].parent) {
    path = path.empty() ? scopes_[scope].name
                        : absl::StrCat(scopes_[scope].name, "/", path);
  }
  return path;
}

ProgramBuilder::ProgramBuilder(ProgramTarget target)
    : target_(std::move(target)) {
  program_.scopes_.emplace_back();
}

Value ProgramBuilder::Input(absl::string_view name, TensorType type,
                            bool needs_grad) {
  program_.values_.push_back({.name = std::string(name),
                              .type = std::move(type),
                              .role = Role::kInput,
                              .needs_grad = needs_grad});
  return {static_cast<int>(program_.values_.size()) - 1};
}

Value ProgramBuilder::Constant(absl::string_view name, TensorType type,
                               std::function<at::Tensor(at::Device)> make) {
  const Value value = Input(name, std::move(type));
  program_.constants_.push_back({value, std::move(make)});
  return value;
}

Weight ProgramBuilder::Parameter(ParameterBlockSpec spec) {
  if (MatchesAny(target_.frozen, spec)) spec.trainable = false;
  spec.muon |= IsTrainedMatrix(spec) && MatchesAny(target_.muon, spec);
  spec.row_moments = spec.muon && target_.muon_row_moments;
  const std::string path = program_.ScopePath(scope_);
  spec.unit = path.substr(0, path.find('/'));
  program_.parameters_.push_back(std::move(spec));
  return {static_cast<int>(program_.parameters_.size()) - 1};
}

Value ProgramBuilder::Read(Weight weight, at::ScalarType dtype) {
  TESSERA_CHECK(weight.parameter <= parameters_read_, spec(weight).name,
                " is read before ", program_.parameters_[parameters_read_].name,
                ", which was declared earlier");
  parameters_read_ = std::max(parameters_read_, weight.parameter + 1);
  Value& value = read_[{weight.parameter, dtype}];
  if (value.defined()) return value;
  ParameterBlockSpec& block = program_.parameters_[weight.parameter];
  block.reads.push_back(dtype);
  program_.values_.push_back({.name = block.name,
                              .type = {BlockShape(block), dtype},
                              .role = Role::kParameter,
                              .parameter = weight.parameter,
                              .needs_grad = block.trainable});
  value.index = static_cast<int>(program_.values_.size()) - 1;
  return value;
}

absl::string_view ProgramBuilder::ShortName(Weight weight) const {
  absl::string_view name = spec(weight).name;
  absl::ConsumeSuffix(&name, ".weight");
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

std::vector<Value> ProgramBuilder::Add(std::unique_ptr<Op> op,
                                       absl::string_view name,
                                       std::vector<Value> operands,
                                       std::vector<TensorType> results,
                                       std::vector<std::string> suffixes) {
  OpNode node;
  node.scope = scope_;
  const std::string path = program_.ScopePath(scope_);
  node.name = path.empty() ? std::string(name) : absl::StrCat(path, "/", name);
  bool needs_grad = false;
  std::vector<TensorType> operand_types;
  for (const Value value : operands) {
    operand_types.push_back(type(value));
    needs_grad |= program_.values_[value.index].needs_grad;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const bool plain = i >= suffixes.size() || suffixes[i].empty();
    program_.values_.push_back(
        {.name = plain ? node.name : absl::StrCat(node.name, ".", suffixes[i]),
         .type = results[i],
         .role = Role::kActivation,
         .needs_grad = needs_grad});
    node.results.push_back({static_cast<int>(program_.values_.size()) - 1});
  }
  op->SetTypes(std::move(operand_types), std::move(results));
  node.op = std::move(op);
  node.operands = std::move(operands);
  std::vector<Value> made = node.results;
  program_.ops_.push_back(std::move(node));
  return made;
}

ProgramBuilder::Scope::Scope(ProgramBuilder& builder, absl::string_view name)
    : builder_(builder) {
  Program& program = builder.program_;
  const int ops = static_cast<int>(program.ops_.size());
  program.scopes_.push_back({.name = std::string(name),
                             .parent = builder.scope_,
                             .first_op = ops,
                             .end_op = ops});
  builder.scope_ = static_cast<int>(program.scopes_.size()) - 1;
}

ProgramBuilder::Scope::~Scope() {
  ProgramScope& scope = builder_.program_.scopes_[builder_.scope_];
  scope.end_op = static_cast<int>(builder_.program_.ops_.size());
  builder_.scope_ = scope.parent;
}

absl::Status ProgramBuilder::CheckFrozenPatterns() const {
  const std::vector<ParameterBlockSpec>& blocks = program_.parameters_;
  for (const std::string& pattern : target_.frozen) {
    if (absl::c_any_of(blocks, [&](const ParameterBlockSpec& block) {
          return MatchesAny({pattern}, block);
        })) {
      continue;
    }
    return absl::NotFoundError(
        absl::StrCat("model.frozen pattern '", pattern,
                     "' matches no parameter; names look like ",
                     blocks.front().members.front().name, " and ",
                     blocks.back().members.front().name));
  }
  for (const ParameterBlockSpec& block : blocks) {
    RETURN_IF_ERROR(CheckMatchesWhole(block, "model.frozen", target_.frozen,
                                      "freeze all of them or none"));
  }
  return absl::OkStatus();
}

absl::Status ProgramBuilder::CheckMuonPatterns() const {
  const std::vector<ParameterBlockSpec>& blocks = program_.parameters_;
  for (const std::string& pattern : target_.muon) {
    if (absl::c_any_of(blocks, [&](const ParameterBlockSpec& block) {
          return IsTrainedMatrix(block) && MatchesAny({pattern}, block);
        })) {
      continue;
    }
    return absl::NotFoundError(
        absl::StrCat("optimizer.muon.patterns pattern '", pattern,
                     "' matches no matrix that is trained; names look like ",
                     blocks.back().members.front().name));
  }
  for (const ParameterBlockSpec& block : blocks) {
    if (!IsTrainedMatrix(block)) continue;
    RETURN_IF_ERROR(CheckMatchesWhole(
        block, "optimizer.muon.patterns", target_.muon,
        "name all of them, because they are updated together"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Program> ProgramBuilder::Build() && {
  RETURN_IF_ERROR(CheckFrozenPatterns());
  RETURN_IF_ERROR(CheckMuonPatterns());
  TESSERA_CHECK(
      parameters_read_ == static_cast<int>(program_.parameters_.size()),
      "a declared parameter is never read");
  program_.scopes_[0].end_op = static_cast<int>(program_.ops_.size());
  return std::move(program_);
}

}  // namespace tessera
