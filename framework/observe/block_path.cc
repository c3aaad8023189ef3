#include "framework/observe/block_path.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr absl::string_view kPrefix = "block_";

}  // namespace

bool IsBlock(absl::string_view scope) {
  return absl::StartsWith(scope, kPrefix);
}

absl::string_view BlockLabel(absl::string_view scope) {
  return absl::StripPrefix(scope, kPrefix);
}

std::string FoldBlocks(absl::string_view path, absl::string_view all) {
  std::vector<absl::string_view> scopes = absl::StrSplit(path, '/');
  for (absl::string_view& scope : scopes) {
    if (IsBlock(scope)) scope = all;
  }
  return absl::StrJoin(scopes, "/");
}

}  // namespace tessera
