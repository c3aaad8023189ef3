#include "framework/optim/parameter_groups.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/name_pattern.h"
#include "framework/base/status_macros.h"
#include "framework/optim/adamw_update.h"

namespace tessera {
namespace {

bool Matches(const ParameterGroup& group, const std::string& name) {
  return std::any_of(
      group.patterns.begin(), group.patterns.end(),
      [&](const std::string& pattern) { return NameMatches(pattern, name); });
}

// The groups that match a parameter; it should be exactly one.
std::vector<int> GroupsOf(absl::Span<const ParameterGroup> groups,
                          const std::string& name) {
  std::vector<int> found;
  for (int i = 0; i < groups.size(); ++i) {
    if (Matches(groups[i], name)) found.push_back(i);
  }
  return found;
}

int64_t FirstChunk(const ParameterSlice& slice) {
  return slice.offset / kAdamWChunk;
}

int64_t LastChunk(const ParameterSlice& slice) {
  return (slice.offset + slice.numel - 1) / kAdamWChunk;
}

// A pattern that matches no parameter is probably misspelt.
void CheckEachPatternMatches(absl::Span<const ParameterGroup> groups,
                             absl::Span<const ParameterSlice> slices,
                             const Violations& violations) {
  for (int i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    for (int j = 0; j < group.patterns.size(); ++j) {
      const std::string& pattern = group.patterns[j];
      const bool used = std::any_of(
          slices.begin(), slices.end(),
          [&](const auto& slice) { return NameMatches(pattern, slice.name); });
      violations.Check(
          used, absl::StrCat("groups[", i, "].patterns[", j, "]"),
          absl::StrCat("pattern \"", pattern, "\" of group \"", group.name,
                       "\" matches no parameter; the first parameter is ",
                       slices.empty() ? "absent" : slices[0].name));
    }
  }
}

// The problem with the groups `found` of a parameter; empty if there is none.
// `before` is the preceding parameter with its group; null for the first one.
std::string WhatIsWrong(absl::Span<const ParameterGroup> groups,
                        const ParameterSlice& slice,
                        const std::vector<int>& found,
                        const ParameterSlice* before, int group_before) {
  const auto name = [&](int group) { return groups[group].name; };
  if (found.empty()) {
    return absl::StrCat("parameter ", slice.name,
                        " matches no group; add a pattern for it");
  }
  if (found.size() > 1) {
    return absl::StrCat("parameter ", slice.name, " matches both \"",
                        name(found[0]), "\" and \"", name(found[1]),
                        "\"; narrow a pattern of one of them");
  }
  if (before == nullptr || LastChunk(*before) != FirstChunk(slice) ||
      group_before == found[0]) {
    return "";
  }
  return absl::StrCat(
      "parameter ", slice.name, " of group \"", name(found[0]),
      "\" is fused with a parameter of group \"", name(group_before),
      "\" and shares a chunk of ", kAdamWChunk,
      " elements with it; put both into one group, or make their sizes "
      "multiples of ",
      kAdamWChunk);
}

}  // namespace

void ValidateGroups(absl::Span<const ParameterGroup> groups,
                    absl::Span<const ParameterSlice> slices,
                    const Violations& violations) {
  if (groups.empty()) return;
  CheckEachPatternMatches(groups, slices, violations);
  const ParameterSlice* before = nullptr;
  int group_before = 0;
  for (const ParameterSlice& slice : slices) {
    if (!slice.trainable) continue;
    const std::vector<int> found = GroupsOf(groups, slice.name);
    const std::string wrong =
        WhatIsWrong(groups, slice, found, before, group_before);
    if (!wrong.empty()) return violations.Add("groups", wrong);
    before = &slice;
    group_before = found[0];
  }
}

absl::StatusOr<std::vector<uint8_t>> AssignChunkGroups(
    absl::Span<const ParameterGroup> groups, const ParameterStore& store) {
  std::vector<uint8_t> table;
  if (groups.empty()) return table;
  std::vector<Violation> broken;
  ValidateGroups(groups, store.slices(),
                 Violations(&broken).In("optimizer.adamw"));
  RETURN_IF_ERROR(FirstViolation(broken));
  table.resize(store.trainable_extent() / kAdamWChunk);
  for (const ParameterSlice& slice : store.slices()) {
    if (!slice.trainable) continue;
    std::fill(table.begin() + FirstChunk(slice),
              table.begin() + LastChunk(slice) + 1,
              static_cast<uint8_t>(GroupsOf(groups, slice.name)[0]));
  }
  return table;
}

}  // namespace tessera
