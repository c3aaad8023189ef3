#ifndef FRAMEWORK_OBSERVE_REPORT_MEMORY_TIMELINE_H_
#define FRAMEWORK_OBSERVE_REPORT_MEMORY_TIMELINE_H_

#include <string>
#include <vector>

#include "framework/observe/report/html_page.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The bytes of each category of memory over a step, stacked: of all memory, and
// of what was not there all the time. A chart without points is left out.
// `timeline` is that of memory_record_json.h.
std::vector<Chart> MemoryTimeline(const nlohmann::ordered_json& timeline,
                                  std::string whole_title,
                                  std::string changes_title);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_MEMORY_TIMELINE_H_
