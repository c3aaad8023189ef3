#include "framework/observe/report/spread.h"

#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/match.h"
#include "framework/observe/report/run_records.h"

namespace tessera {

std::optional<double> StandardDeviation(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / (n - 1));
}

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
