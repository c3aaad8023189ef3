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

constexpr uint8_t kUnassigned = 0xff;

bool Matches(const ParameterGroupConfig& group, const std::string& name) {
  return std::any_of(
      group.patterns().begin(), group.patterns().end(),
      [&](const std::string& pattern) { return NameMatches(pattern, name); });
}

absl::StatusOr<uint8_t> GroupOf(const AdamWConfig& config,
                                const std::string& name) {
  int found = -1;
  for (int i = 0; i < config.groups_size(); ++i) {
    if (!Matches(config.groups(i), name)) continue;
    if (found >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer.adamw.groups: parameter ", name, " matches both \"",
          config.groups(found).name(), "\" and \"", config.groups(i).name(),
          "\"; narrow a pattern of one of them"));
    }
    found = i;
  }
  if (found < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.adamw.groups: parameter ", name,
                     " matches no group; add a pattern for it"));
  }
  return static_cast<uint8_t>(found);
}

// A pattern without a parameter is a misspelt name.
absl::Status CheckEachPatternMatches(const AdamWConfig& config,
                                     const ParameterStore& store) {
  for (const ParameterGroupConfig& group : config.groups()) {
    for (const std::string& pattern : group.patterns()) {
      const bool used = std::any_of(
          store.slices().begin(), store.slices().end(),
          [&](const auto& slice) { return NameMatches(pattern, slice.name); });
      if (used) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer.adamw.groups: pattern \"", pattern, "\" of group \"",
          group.name(), "\" matches no parameter; the first parameter is ",
          store.slices().empty() ? "absent" : store.slices()[0].name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> AssignChunkGroups(
    const AdamWConfig& config, const ParameterStore& store) {
  std::vector<uint8_t> table;
  if (config.groups().empty()) return table;
  RETURN_IF_ERROR(CheckEachPatternMatches(config, store));
  table.assign(store.trainable_extent() / kAdamWChunk, kUnassigned);
  for (const ParameterSlice& slice : store.slices()) {
    if (!slice.trainable) continue;
    ASSIGN_OR_RETURN(const uint8_t group, GroupOf(config, slice.name));
    const int64_t first = slice.offset / kAdamWChunk;
    const int64_t last = (slice.offset + slice.numel - 1) / kAdamWChunk;
    if (table[first] != kUnassigned && table[first] != group) {
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer.adamw.groups: parameter ", slice.name, " of group \"",
          config.groups(group).name(), "\" starts within ", kAdamWChunk,
          " elements that it shares with a parameter of group \"",
          config.groups(table[first]).name(),
          "\", with which it is fused; put both into one group, or make the "
          "sizes multiples of ",
          kAdamWChunk));
    }
    std::fill(table.begin() + first, table.begin() + last + 1, group);
  }
  return table;
}

}  // namespace tessera
