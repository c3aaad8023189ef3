#include "framework/observe/format.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {

std::string FormatCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  const int first = count < 0 ? 1 : 0;
  for (int place = static_cast<int>(digits.size()) - 3; place > first;
       place -= 3) {
    digits.insert(place, 1, ',');
  }
  return digits;
}

std::string FormatCountOf(int64_t count, absl::string_view one) {
  const absl::string_view plural = absl::EndsWith(one, "ch") ? "es" : "s";
  return absl::StrCat(FormatCount(count), " ", one, count == 1 ? "" : plural);
}

ByteUnit ByteUnitFor(double bytes) {
  constexpr std::array<ByteUnit, 5> kUnits = {{{"TiB", 1099511627776.0},
                                               {"GiB", kGibibyte},
                                               {"MiB", kMebibyte},
                                               {"KiB", 1024.0},
                                               {"B", 1.0}}};
  for (const ByteUnit& unit : kUnits) {
    if (bytes >= unit.bytes) return unit;
  }
  return kUnits.back();
}

std::string FormatBytes(int64_t bytes) {
  const ByteUnit unit = ByteUnitFor(static_cast<double>(bytes));
  if (unit.bytes == 1) return absl::StrCat(bytes, " B");
  return absl::StrFormat("%.2f %s", static_cast<double>(bytes) / unit.bytes,
                         unit.name);
}

std::string FormatElapsed(absl::Duration duration) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(duration));
  const int64_t minutes = seconds / 60;
  const int64_t hours = minutes / 60;
  if (minutes == 0) return absl::StrCat(seconds, "s");
  if (hours == 0) return absl::StrFormat("%dm%02ds", minutes, seconds % 60);
  if (hours < 24) return absl::StrFormat("%dh%02dm", hours, minutes % 60);
  return absl::StrFormat("%dd%02dh", hours / 24, hours % 24);
}

}  // namespace tessera
