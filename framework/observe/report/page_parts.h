#ifndef FRAMEWORK_OBSERVE_REPORT_PAGE_PARTS_H_
#define FRAMEWORK_OBSERVE_REPORT_PAGE_PARTS_H_

#include "absl/strings/string_view.h"

namespace tessera {

// report_page.html, with {{TITLE}}, {{BODY}}, {{CHARTS}} (JSON) and
// {{CHART_LIBRARY}} to fill in.
absl::string_view PageTemplate();

// Chart.js, minified.
absl::string_view ChartLibrary();

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_PAGE_PARTS_H_
