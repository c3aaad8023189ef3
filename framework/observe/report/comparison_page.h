#ifndef FRAMEWORK_OBSERVE_REPORT_COMPARISON_PAGE_H_
#define FRAMEWORK_OBSERVE_REPORT_COMPARISON_PAGE_H_

#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_records.h"

namespace tessera {

// Two runs side by side: their figures and whether these differ by more than
// noise, curves on common axes, and, if both have a profile, their kernels.
HtmlPage ComparisonPage(const RunRecords& a, const RunRecords& b);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_COMPARISON_PAGE_H_
