#ifndef FRAMEWORK_OBSERVE_REPORT_RUN_PAGE_H_
#define FRAMEWORK_OBSERVE_REPORT_RUN_PAGE_H_

#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_records.h"

namespace tessera {

// The report of a run: headline figures, curves, phases, memory, the GPU's
// counters, the profile of traced steps and the config. A section without data
// is left out.
HtmlPage RunPage(const RunRecords& run);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_RUN_PAGE_H_
