#ifndef FRAMEWORK_OBSERVE_REPORT_PROFILE_SECTIONS_H_
#define FRAMEWORK_OBSERVE_REPORT_PROFILE_SECTIONS_H_

#include <vector>

#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_records.h"

namespace tessera {

// What RunRecords::profile says: totals, kernels, ops against the roofline,
// idle time and the critical path. Empty without a profile; a section without
// data is left out.
std::vector<HtmlSection> ProfileSections(const RunRecords& run);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_PROFILE_SECTIONS_H_
