#include "framework/dist/rank_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {

std::string RankList(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 16;
  const size_t named = std::min(ranks.size(), kMostNamed);
  std::string list =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                   absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "));
  if (named < ranks.size()) {
    absl::StrAppend(&list, " and ", ranks.size() - named, " more");
  }
  return list;
}

}  // namespace tessera
