#include "framework/base/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/ascii.h"

namespace tessera {
namespace {

// Levenshtein distance: the least number of insertions, deletions and
// replacements.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // from a's first i bytes to b's j
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& names) {
  const std::string lower_name = absl::AsciiStrToLower(name);
  std::string nearest;
  // Up to a third of the name wrong is a typo; more is another name.
  size_t nearest_distance = (name.size() + 2) / 3 + 1;
  for (const std::string& candidate : names) {
    // The difference in length is a lower bound of the distance. This skips the
    // comparison for a hostile megabyte.
    if (name.size() >= candidate.size() + nearest_distance) continue;
    const size_t distance =
        EditDistance(lower_name, absl::AsciiStrToLower(candidate));
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace tessera
