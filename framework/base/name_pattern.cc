#include "framework/base/name_pattern.h"

#include "absl/strings/match.h"

namespace tessera {

bool NameMatches(absl::string_view pattern, absl::string_view name) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == name;
  const absl::string_view head = pattern.substr(0, star);
  if (!absl::StartsWith(name, head)) return false;
  const absl::string_view rest = pattern.substr(star + 1);
  for (size_t from = head.size(); from <= name.size(); ++from) {
    if (NameMatches(rest, name.substr(from))) return true;
  }
  return false;
}

}  // namespace tessera
