#include "framework/observe/report/spread.h"

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "framework/base/statistics.h"

namespace tessera {

bool IsSpreadOut(double median, double spread) {
  return spread > 0.1 * std::abs(median);
}

bool IsSpreadOut(const std::vector<double>& values) {
  const std::optional<double> spread = StandardDeviation(values);
  return spread.has_value() && IsSpreadOut(*Median(values), *spread);
}

absl::string_view SpreadMark(bool spread_out) {
  return spread_out ? kSpreadMark : "";
}

void NoteSpread(HtmlTable* table) {
  for (const std::vector<TableCell>& row : table->rows) {
    for (const TableCell& cell : row) {
      if (absl::EndsWith(cell.text, kSpreadMark)) {
        table->note = std::string(kSpreadNote);
      }
    }
  }
}

void NoteSpread(HtmlSection* section) {
  for (const Headline& headline : section->headlines) {
    if (absl::EndsWith(headline.value, kSpreadMark)) {
      section->headlines_note = std::string(kSpreadNote);
    }
  }
}

}  // namespace tessera
