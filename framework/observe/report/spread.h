#ifndef FRAMEWORK_OBSERVE_REPORT_SPREAD_H_
#define FRAMEWORK_OBSERVE_REPORT_SPREAD_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "framework/observe/report/html_page.h"

namespace tessera {

// Stands after a figure whose values are spread out.
inline constexpr absl::string_view kSpreadMark = " †";
// Says what the mark means; below a table or list that has one.
inline constexpr absl::string_view kSpreadNote =
    "† The values behind this figure are spread out: their standard deviation "
    "is more than a tenth of their median.";

// Whether `spread` is more than a tenth of `median`.
bool IsSpreadOut(double median, double spread);

// Whether the standard deviation of `values` is more than a tenth of their
// median.
bool IsSpreadOut(const std::vector<double>& values);

// kSpreadMark if `spread_out`, else nothing.
absl::string_view SpreadMark(bool spread_out);

// Adds kSpreadNote if a cell, or a headline of the section, has the mark.
void NoteSpread(HtmlTable* table);
void NoteSpread(HtmlSection* section);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_SPREAD_H_
